"""The identity that calls between processes of a cluster carry: the cluster id, and the incarnation id of its
metadata log.

Callers of the controllers send both in the headers of each call. A controller refuses calls that are meant for
another cluster, for another metadata log, or for a quorum with other voters: its responses would be wrong for the
caller. A caller sends only the ids that it knows, and a missing header is not checked; older programs send none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from odradek_protocol.identity import MetadataIncarnationId

_CLUSTER: Final = "odradek-cluster-bin"
_METADATA: Final = "odradek-metadata-bin"
_CONTROLLERS: Final = "odradek-controllers-bin"
_CONTROLLERS_MAX: Final = 100
STRANGER: Final = "NOT OF THIS CLUSTER: "  # the beginning of the refusal's text
Headers = tuple[tuple[str, bytes], ...]


class ClusterIdentity:
    """The identity of a process's cluster as far as the process knows it; `metadata_incarnation_id` is learnt later."""

    def __init__(
        self,
        cluster_id: str = "",
        *,
        controller_ids: Iterable[int] = (),
        metadata_incarnation_id: MetadataIncarnationId | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self.controller_ids = frozenset(controller_ids)
        self.metadata_incarnation_id = metadata_incarnation_id

    def headers(self) -> Headers:
        """Return the headers of a call."""
        headers = []
        if self.cluster_id:
            headers.append((_CLUSTER, self.cluster_id.encode()))
        if self.metadata_incarnation_id is not None:
            headers.append((_METADATA, self.metadata_incarnation_id))
        if self.controller_ids:
            ids = ",".join(map(str, sorted(self.controller_ids)))
            headers.append((_CONTROLLERS, ids.encode()))
        return tuple(headers)


def why_stranger(
    headers: Iterable[tuple[str, str | bytes]],
    *,
    cluster_id: str,
    metadata_incarnation_id: MetadataIncarnationId | None,
    voters: Collection[int],
) -> str:
    """Return why a call is not meant for this controller, with the remedy; "" if the call is meant for it.

    A controller without an incarnation cannot tell whether the caller follows another log (`must_wait`).
    """
    sent = dict(headers)
    cluster = sent.get(_CLUSTER)
    if isinstance(cluster, bytes) and cluster != cluster_id.encode():
        return (
            f"the caller belongs to cluster {cluster.decode(errors='replace')}, this controller to"
            f" {cluster_id}: correct the caller's cluster.id or controller.rpc.endpoints"
        )
    metadata = sent.get(_METADATA)
    if isinstance(metadata, bytes) and metadata_incarnation_id not in (None, metadata):
        assert metadata_incarnation_id is not None
        return (
            f"the caller follows the metadata log {metadata.hex()}, this controller has"
            f" {metadata_incarnation_id.hex()}: the controllers lost their data directories and"
            " started from nothing, or belong to another cluster. Restore their data directories, or correct"
            " controller.rpc.endpoints"
        )
    named = _ids(sent.get(_CONTROLLERS))
    if not named <= set(voters):
        return (
            f"the caller names the controllers {_list(named)}, the voters of this one are"
            f" {_list(voters)}: correct controller.rpc.endpoints of the caller, or"
            " controller.quorum.voters of the controller that differs from the others, and format"
            " that one again"
        )
    return ""


def must_wait(
    headers: Iterable[tuple[str, str | bytes]],
    *,
    metadata_incarnation_id: MetadataIncarnationId | None,
) -> bool:
    """Whether the caller names an incarnation while this controller knows none yet.

    This controller's log may be the one that the caller follows, or a new one whose first batch is not committed.
    """
    return metadata_incarnation_id is None and _METADATA in dict(headers)


def _ids(value: str | bytes | None) -> set[int]:
    if not isinstance(value, bytes):
        return set()
    items = value.split(b",", _CONTROLLERS_MAX)
    return {int(item) for item in items if item.isdigit() and len(item) <= 10}


def _list(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids)))
