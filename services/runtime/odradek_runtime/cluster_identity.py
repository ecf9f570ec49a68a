"""The identity that calls between processes of a cluster carry: the cluster id, and the incarnation id of its
metadata log.

Each call to a controller has both ids in its headers, and the ids of the controllers that the caller knows. A
controller refuses a call that is meant for another cluster, for another metadata log, or for a quorum with other
voters, because its response would be wrong for the caller. A caller sends only the ids that it knows. A missing header
is not checked, because older programs send no such headers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from odradek_protocol.identity import MetadataIncarnationId

_CLUSTER: Final = "odradek-cluster-bin"
_METADATA: Final = "odradek-metadata-bin"
_CONTROLLERS: Final = "odradek-controllers-bin"
_CONTROLLERS_MAX: Final = 100
STRANGER: Final = "NOT OF THIS CLUSTER: "  # the error text of a refused call begins with this
Headers = tuple[tuple[str, bytes], ...]


class ClusterIdentity:
    """The identity of the cluster, as far as this process knows it.

    `metadata_incarnation_id` is None until the process has learned it from its data directory or the metadata log.
    """

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
        """Return the headers that identify the cluster in a call to a controller."""
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
    """Return why a call with these headers is not meant for this controller, with the remedy. Return "" if the call is
    meant for this controller.

    `cluster_id`, `metadata_incarnation_id` and `voters` are this controller's own. While `metadata_incarnation_id` is
    None, the caller's incarnation id is not checked here (see `must_wait`).
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
            " started a new log, or belong to another cluster. Restore their data directories, or correct"
            " controller.rpc.endpoints"
        )
    named = _ids(sent.get(_CONTROLLERS))
    if not named <= set(voters):
        return (
            f"the caller names the controllers {_list(named)}, but this controller's voters are"
            f" {_list(voters)}: correct controller.rpc.endpoints of the caller; or, if one controller's"
            " controller.quorum.voters differs from the others', correct that setting and format the"
            " controller again"
        )
    return ""


def must_wait(
    headers: Iterable[tuple[str, str | bytes]],
    *,
    metadata_incarnation_id: MetadataIncarnationId | None,
) -> bool:
    """Whether the caller sent an incarnation id while this controller does not know its own yet, so that the caller
    must retry.

    Until its first batch is committed and applied, this controller cannot tell whether its metadata log is the one
    that the caller follows.
    """
    return metadata_incarnation_id is None and _METADATA in dict(headers)


def _ids(value: str | bytes | None) -> set[int]:
    if not isinstance(value, bytes):
        return set()
    items = value.split(b",", _CONTROLLERS_MAX)
    return {int(item) for item in items if item.isdigit() and len(item) <= 10}


def _list(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids)))
