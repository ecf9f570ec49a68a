"""Checks what the voters committed, with knowledge that no voter has.

The first node that applies an offset defines its entry and digest, and every other node must agree. All acknowledged
entries must stay in the log, and a term has one leader. A read must have seen everything that any leader acknowledged
before the read arrived.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek_metadata_quorum.errors import CorruptStorage
from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.network.wire import Message
from odradek_metadata_quorum.storage.data_directory import IDENTITY_NAME
from odradek_metadata_quorum.storage.disk import read_file
from odradek_metadata_quorum.storage.log_recovery import recover_log
from odradek_metadata_quorum.storage.snapshot_store import SnapshotStore
from odradek_metadata_quorum.storage.vote_file import VoteFile

if TYPE_CHECKING:
    from tests.sim.quorum.simulated_node import SimulatedNode

_DURABLE_FILES = ("log-", "vote", "snapshot-", "identity")


class OracleError(AssertionError):
    """A voter has broken one of Raft's guarantees."""


class Oracle:
    """The committed entries, the acknowledged entries, and the leader of each term."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[int, bytes]] = {}
        self.digests: dict[int, bytes] = {}
        self.acknowledged: dict[int, bytes] = {}
        self.leaders: dict[int, int] = {}

    def applied(self, node_id: int, offset: int, epoch: int, payload: bytes, digest: bytes) -> None:
        entry = self.entries.setdefault(offset, (epoch, payload))
        if entry != (epoch, payload):
            raise OracleError(f"node {node_id} applied {(epoch, payload)} at {offset}, not {entry}")
        if self.digests.setdefault(offset, digest) != digest:
            raise OracleError(f"node {node_id} diverged at {offset}")

    def acknowledge(self, offset: int, payload: bytes) -> None:
        if self.entries.get(offset, (0, b""))[1] != payload:
            raise OracleError(
                f"{payload!r} was acknowledged at {offset}, but another entry is committed"
            )
        self.acknowledged[offset] = payload

    def answered_read(self, node_id: int, seen: int, acknowledged: int) -> None:
        """Check a read. `seen` is the last entry that the node had applied when the read arrived, and `acknowledged`
        the newest acknowledged entry at that time.
        """
        if seen < acknowledged:
            raise OracleError(
                f"node {node_id} answered a read from entry {seen}, but {acknowledged} was acknowledged"
            )

    def leads(self, node_id: int, term: int) -> None:
        if self.leaders.setdefault(term, node_id) != node_id:
            raise OracleError(f"nodes {self.leaders[term]} and {node_id} both lead term {term}")


def check_disk_vouches(source: SimulatedNode, target: int, message: Message) -> None:
    """Check that everything that a message claims would still be on the disk after a power cut at this moment."""
    kind = message["type"]
    claimed = 0
    if kind == wire.APPEND_ENTRIES:
        claimed = message["prevLogIdx"] + len(message["entries"])
    elif kind == wire.NEXT_NODE_IDX and message["success"]:
        claimed = message["next_node_idx"] - 1
    elif kind == wire.SNAPSHOT_REPLY and message["installed"]:
        claimed = message["offset"]
    term = message["term"] if "term" in message and kind != wire.PRE_VOTE else 0
    vote = {wire.RESPONSE_VOTE: target, wire.REQUEST_VOTE: source.node_id}.get(kind)
    _check_durable(source, claimed, term, vote, said=repr(message))


def check_dirty_disk_vouches(source: SimulatedNode, target: int, message: Message) -> None:
    """Check a message as `check_disk_vouches` does, if the disk has unsynced bytes, which a power cut would lose."""
    if source.disk.unsynced(_DURABLE_FILES):
        check_disk_vouches(source, target, message)


def check_opened(node: SimulatedNode) -> None:
    """Check that the log and the vote that a restarted voter reports would survive a power cut."""
    log, votes = node.barrier.log, node.barrier._vote_file
    claimed = max(log.synced_index, node.raft.applied)
    _check_durable(node, claimed, votes.term, votes.vote, said="it opened its log")
    joined = json.loads(read_file(node.disk.after_power_cut(), IDENTITY_NAME))["joined"]
    if node.raft.may_vote and not joined:
        raise OracleError(f"node {node.node_id} votes, but after a power cut it would join again")


def _check_durable(
    node: SimulatedNode, claimed: int, term: int, vote: int | None, *, said: str
) -> None:
    disk = node.disk.after_power_cut()
    try:
        votes = VoteFile(disk)
        entries = recover_log(disk).entries
        snapshot = SnapshotStore(disk).current
    except (CorruptStorage, FileNotFoundError) as error:
        raise OracleError(f"node {node.node_id}: {said}; a power cut leaves {error!r}") from None
    covered = max(entries[-1][1], snapshot.offset if snapshot else 0)
    if votes.term < term or covered < claimed or vote not in (None, votes.vote):
        raise OracleError(
            f"node {node.node_id}: {said}; its disk has term {votes.term}, vote {votes.vote},"
            f" entries to {covered} of {claimed}"
        )


class DigestMachine:
    """A state machine whose state is the digest of its history, padded to several snapshot chunks."""

    PADDING = 3000

    def __init__(self, node_id: int, oracle: Oracle) -> None:
        self._node_id = node_id
        self._oracle = oracle
        self.digest = b"\0" * 16
        self.history: list[tuple[int, int, bytes]] = []
        self.fail_at: int | None = None

    def apply(self, offset: int, epoch: int, payload: bytes) -> None:
        if offset == self.fail_at:
            raise ValueError("a poisoned entry")
        content = self.digest + offset.to_bytes(8, "big") + payload
        self.digest = hashlib.blake2b(content, digest_size=16).digest()
        self.history.append((offset, epoch, payload))
        self._oracle.applied(self._node_id, offset, epoch, payload, self.digest)

    def snapshot(self) -> Callable[[], bytes]:
        digest = self.digest
        return lambda: digest + digest * (self.PADDING // 16)

    def restore(self, offset: int, epoch: int, data: bytes) -> Callable[[], None]:
        assert len(data) == 16 + self.PADDING // 16 * 16

        def replace() -> None:
            self.digest = data[:16]
            self.history.clear()

        return replace
