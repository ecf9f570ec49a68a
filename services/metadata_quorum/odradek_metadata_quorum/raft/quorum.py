"""The interface of the quorum to the rest of the process: start and stop, proposals, leadership, committed entries, and
status.

A proposal that was appended ends in exactly one of three ways. It is *applied*: the entry at its offset has its term.
Its outcome is *unknown*: the leadership ended, the timeout passed, or a snapshot replaced the entry. Or the caller
*cancelled* the call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from odradek_metadata_quorum.errors import (
    LeadershipUnconfirmed,
    NotLeader,
    OutcomeUnknown,
    ProposalTooLarge,
    QuorumOverloaded,
)
from odradek_metadata_quorum.network.transport import BrokerAddresses
from odradek_metadata_quorum.raft.shell import (
    CommittedEntry,
    LatencyStatus,
    PeerStatus,
    QuorumRole,
    QuorumStatus,
    StateMachine,
    StateSnapshot,
)
from odradek_metadata_quorum.raft.voter import Voter, end_process
from odradek_metadata_quorum.settings import QuorumSettings
from odradek_metadata_quorum.storage.disk import Fatal
from odradek_metadata_quorum.storage.snapshot_store import SnapshotId

_STOP_TRANSFER_S: Final = 1.0
_HAND_OVER_RETRY_S: Final = 0.1
_FEED_ENTRIES_MAX: Final = 10_000
_OPEN_TRIES_MAX: Final = 100
_OPEN_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class HeldProposal:
    """A proposal that is not appended yet, because it arrived while this node was handing over its leadership."""

    payload: bytes
    epoch: int
    admitted: asyncio.Future[tuple[int, asyncio.Future[int]]]

    def admit(self, append: Callable[[bytes, int], tuple[int, asyncio.Future[int]]]) -> None:
        """Append the proposal, unless its caller no longer waits. The caller gets NotLeader if `append` raises it."""
        if self.admitted.done():
            return
        try:
            self.admitted.set_result(append(self.payload, self.epoch))
        except NotLeader as error:
            self.admitted.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Pending:
    epoch: int
    payload_bytes: int
    future: asyncio.Future[int]


class PendingProposals:
    """The proposals that are appended and not applied yet. `Quorum` limits `count` and `payload_bytes`."""

    def __init__(self) -> None:
        self._by_offset: dict[int, _Pending] = {}
        self.payload_bytes = 0

    @property
    def count(self) -> int:
        return len(self._by_offset)

    def add(self, offset: int, epoch: int, payload_bytes: int) -> asyncio.Future[int]:
        """Add a proposal, and return its future. The result of the future is the entry's offset, once it is applied."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        assert offset not in self._by_offset, offset
        self._by_offset[offset] = _Pending(epoch, payload_bytes, future)
        self.payload_bytes += payload_bytes
        return future

    def applied(self, offset: int, epoch: int) -> None:
        """Complete the proposal for `offset`, because the entry at this offset, with the term `epoch`, was applied."""
        pending = self._remove(offset)
        if pending is None or pending.future.done():
            return
        if pending.epoch == epoch:
            pending.future.set_result(offset)
        else:
            pending.future.set_exception(_unknown(offset, "an entry of another leader replaced it"))

    def restored(self, offset: int) -> None:
        """Fail the proposals up to `offset` with OutcomeUnknown, because a snapshot replaced their entries."""
        for waiting in [waiting for waiting in self._by_offset if waiting <= offset]:
            self._fail(waiting, "a snapshot replaced the entry")

    def fail_all(self, reason: str) -> None:
        """Fail all proposals with OutcomeUnknown."""
        for offset in list(self._by_offset):
            self._fail(offset, reason)

    def forget(self, offset: int, epoch: int) -> None:
        """Remove a proposal for which its caller no longer waits."""
        pending = self._by_offset.get(offset)
        if pending is not None and pending.epoch == epoch:
            self._remove(offset)

    def _fail(self, offset: int, reason: str) -> None:
        pending = self._remove(offset)
        if pending is not None and not pending.future.done():
            pending.future.set_exception(_unknown(offset, reason))

    def _remove(self, offset: int) -> _Pending | None:
        pending = self._by_offset.pop(offset, None)
        if pending is not None:
            self.payload_bytes -= pending.payload_bytes
        return pending


def _unknown(offset: int, reason: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"it is not known whether entry {offset} is committed: {reason}")


class Quorum:
    """One voter: a replicated log, elections, and the state machine to which the log is applied.

    All methods run on the event loop on which `start` was called. Disk writes run on two threads. `fatal` is called
    with an error after which the process must end. By default it ends the process at once; tests replace it. A client
    that connects to the listener for voters is told the `broker_addresses`.
    """

    def __init__(
        self,
        settings: QuorumSettings,
        state_machine: StateMachine,
        *,
        fatal: Fatal = end_process,
        broker_addresses: BrokerAddresses = list,
    ) -> None:
        self._settings = settings
        self._pending = PendingProposals()
        self._listeners: list[tuple[Callable[[int], None], Callable[[int], None]]] = []
        self._applied_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._voter = Voter(
            settings,
            state_machine,
            events=_Relay(self),
            fatal=fatal,
            broker_addresses=broker_addresses,
        )
        # Proposals that wait while leadership is handed over.
        self._held: deque[HeldProposal] | None = None
        self._snapshot_reading = asyncio.Lock()
        self._read_snapshots: WeakValueDictionary[SnapshotId, StateSnapshot] = WeakValueDictionary()
        self._started = False
        self._stopping = False

    async def start(self) -> None:
        """Load the snapshot and the log, open the listener, and take part in the quorum.

        Raises `StorageMismatch` (for example, the directory is not formatted), `CorruptStorage`, `InsecureListener`, or
        `OSError` (the port is in use).
        """
        self._loop = asyncio.get_running_loop()
        await self._voter.open()
        self._started = True

    async def stop(self) -> None:
        """Try to hand over the leadership for a limited time, fail pending proposals with OutcomeUnknown, and close all
        files and connections.

        If `start` failed, do nothing, because `start` has closed everything itself.
        """
        if self._stopping or not self._started:
            return
        if self._voter.node.is_leader and len(self._settings.voters) > 1:
            await self.transfer_leadership(_STOP_TRANSFER_S)
        self._stopping = True
        await self._voter.close()
        self._pending.fail_all("this controller stopped")
        self._wake_applied_waiters(everyone=True)

    # Proposals.

    async def propose(self, payload: bytes, *, epoch: int, timeout_s: float) -> int:
        """Replicate one entry. Return its offset when it is committed and applied on this node.

        `epoch` is the term in which the caller made the decision. The entry is never appended in another term.

        Raises:
            NotLeader, ProposalTooLarge, QuorumOverloaded: The entry was not appended.
            OutcomeUnknown: The leadership ended or `timeout_s` passed before the entry was applied.
            ValueError: The payload is empty. The feed of committed entries marks a leader's no-op by an empty payload.
        """
        settings = self._settings
        if not payload:
            raise ValueError("a proposal must not be empty")
        if len(payload) > settings.proposal_bytes_max:
            raise ProposalTooLarge(
                f"a proposal of {len(payload)} bytes is above the limit of"
                f" {settings.proposal_bytes_max} bytes: divide it"
            )
        held_count = len(self._held) if self._held is not None else 0
        if (
            self._pending.count + held_count >= settings.pending_proposals_max
            or self._pending.payload_bytes + len(payload) > settings.pending_bytes_max
        ):
            raise QuorumOverloaded(
                f"{self._pending.count} proposals are not committed yet: try again later"
            )
        if self._held is not None:
            waiting = HeldProposal(payload, epoch, self._loop.create_future())
            self._held.append(waiting)
            offset, future = await waiting.admitted
        else:
            offset, future = self._append(payload, epoch)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise OutcomeUnknown(f"entry {offset} did not commit within {timeout_s} s") from None
        finally:
            self._pending.forget(offset, epoch)

    def _append(self, payload: bytes, epoch: int) -> tuple[int, asyncio.Future[int]]:
        """Append a proposal now. Return its offset, and a future that is done when the entry is applied. Raises
        `NotLeader`.
        """
        offset = self._voter.node.propose(payload, epoch)
        if offset is None:
            raise NotLeader(
                f"controller {self._settings.node_id} does not lead epoch {epoch}",
                leader_id=self.leader_id,
            )
        self._voter.wake(0.0)
        return offset, self._pending.add(offset, epoch, len(payload))

    async def confirm_leadership(self, *, epoch: int, timeout_s: float) -> None:
        """Return when a majority has confirmed that no other voter was elected leader before this call.

        So no voter had applied entries that this node lacked when the call began. All callers that wait share one round
        trip to the other voters, and no entry is written.

        Raises:
            NotLeader: This node is not the leader, or its leadership ended before the confirmation.
            LeadershipUnconfirmed: `timeout_s` passed.
        """
        node = self._voter.node
        confirmed: asyncio.Future[bool] = self._loop.create_future()

        def settle(is_confirmed: bool) -> None:
            if not confirmed.done():
                confirmed.set_result(is_confirmed)

        if node.active_epoch == epoch:
            node.confirm_leadership(settle)
            self._voter.wake(0.0)
        else:
            settle(False)
        try:
            async with asyncio.timeout(timeout_s):
                is_confirmed = await confirmed
        except TimeoutError:
            raise LeadershipUnconfirmed(
                f"no majority of the controllers {sorted(self._settings.voters)} confirmed within"
                f" {timeout_s} s that controller {self._settings.node_id} still leads: try again"
            ) from None
        if not is_confirmed:
            raise NotLeader(
                f"controller {self._settings.node_id} does not lead epoch {epoch}",
                leader_id=self.leader_id,
            )

    # Leadership.

    def add_leadership_listener(
        self, *, on_active: Callable[[int], None], on_resigned: Callable[[int], None]
    ) -> None:
        """Add functions that are called when this node becomes the active leader, and when its leadership ends.

        `on_active(epoch)` is called when this node is the leader of term `epoch` and has applied the no-op entry of
        this term. `on_resigned(epoch)` is called as soon as the leadership ends, after all pending proposals have
        failed. Both run on the event loop, and an exception in one of them ends the process. Add listeners before
        `start`.
        """
        self._listeners.append((on_active, on_resigned))

    async def transfer_leadership(self, timeout_s: float) -> bool:
        """Hand over the leadership to a peer that has the whole log, within `timeout_s`. Return whether this succeeded.

        New proposals wait in order until the end of the call, so that a peer can receive the whole log. Then they are
        appended, or refused because another node is the leader. If this node is not the leader, return False.
        """
        if not self._started or not self._voter.node.is_leader or self._held is not None:
            return False
        node = self._voter.node
        held = self._held = deque()
        try:
            end_s = self._loop.time() + timeout_s
            handed_over_s = 0.0
            while node.is_leader and self._loop.time() < end_s:
                successor = node.best_successor()
                if successor is not None and self._loop.time() - handed_over_s > _HAND_OVER_RETRY_S:
                    handed_over_s = self._loop.time()
                    node.hand_over(successor)
                await asyncio.sleep(0.005)
            return not node.is_leader
        finally:
            self._held = None
            for proposal in held:
                proposal.admit(self._append)

    @property
    def role(self) -> QuorumRole:
        if not self._voter.node.may_vote:
            return QuorumRole.JOINING
        if self._voter.node.is_leader:
            return QuorumRole.LEADER
        if self._voter.node.is_candidate:
            return QuorumRole.CANDIDATE
        return QuorumRole.FOLLOWER

    @property
    def leader_id(self) -> int | None:
        """The id of the leader, as far as this node knows; None during an election."""
        return self._voter.node.leader_id

    @property
    def term(self) -> int:
        """Raft's current term, which is the controller epoch of the leader elected in it."""
        return self._voter.node.term

    @property
    def active_epoch(self) -> int | None:
        """The term in which this node is the active leader; None if it is not the active leader."""
        return self._voter.node.active_epoch

    @property
    def commit_index(self) -> int:
        """The index of the last entry that is known to be committed."""
        return self._voter.node.commit_index

    @property
    def applied(self) -> int:
        """The index of the last entry that was applied to the state machine. It is never above `commit_index`."""
        return self._voter.node.applied

    @property
    def disk_wait_s(self) -> float:
        """The seconds since the disk write in progress started; 0 if there is none."""
        return self._voter.barrier.waited_ns / 1e9

    @property
    def listen_port(self) -> int:
        """The port of the listener for other voters. It is known after `start`."""
        return self._voter.network.port

    # The feed of committed entries.

    async def wait_applied(self, offset: int, timeout_s: float) -> int:
        """Wait until `applied` is at least `offset`, for at most `timeout_s`. Return `applied` in both cases."""
        if self.applied < offset and not self._stopping:
            future: asyncio.Future[None] = self._loop.create_future()
            waiter = (offset, future)
            self._applied_waiters.append(waiter)
            await asyncio.wait({future}, timeout=timeout_s)
            if waiter in self._applied_waiters:
                self._applied_waiters.remove(waiter)
        return self.applied

    def entries(self, from_offset: int, bytes_max: int) -> Sequence[CommittedEntry] | None:
        """Return applied entries from `from_offset` on: at most `bytes_max` bytes, but at least one entry.

        The result is empty if no such entry is applied yet. Return None if the log no longer has the entry at
        `from_offset`; the caller must then use `latest_snapshot`.
        """
        entries = self._voter.node.entries(from_offset, _FEED_ENTRIES_MAX)
        if entries is None:
            return None
        taken: list[CommittedEntry] = []
        total = 0
        for command, offset, epoch in entries:
            total += len(command)
            if taken and total > bytes_max:
                break
            taken.append(CommittedEntry(offset, epoch, command[1:]))
        return taken

    async def latest_snapshot(self) -> StateSnapshot | None:
        """Return the newest snapshot on disk. Return None if there is none; the log then has all entries.

        Callers share one copy in memory while any of them uses it. Raises OSError if the file cannot be read, and
        CorruptStorage if it is damaged.
        """
        async with self._snapshot_reading:
            snapshot_id = self._voter.snapshots.current
            snapshot = self._read_snapshots.get(snapshot_id) if snapshot_id is not None else None
            if snapshot is None and (read := await self._read_snapshot()) is not None:
                snapshot_id, snapshot = read
                self._read_snapshots[snapshot_id] = snapshot
            return snapshot

    async def _read_snapshot(self) -> tuple[SnapshotId, StateSnapshot] | None:
        tries = 0
        while (opened := self._voter.snapshots.open_current()) is None:
            if self._voter.snapshots.current is None:
                return None
            tries += 1
            if tries >= _OPEN_TRIES_MAX:
                raise FileNotFoundError(
                    f"the snapshot file in {self._settings.data_dir} does not exist, although the controller did not"
                    " delete it"
                )
            await asyncio.sleep(_OPEN_PAUSE_S)  # the file is being replaced at this moment
        try:
            data = await asyncio.to_thread(opened.read)
        finally:
            opened.close()
        return opened.snapshot, StateSnapshot(opened.snapshot.offset, opened.snapshot.epoch, data)

    def status(self) -> QuorumStatus:
        """Return the present values for metrics and for descriptions of the quorum."""
        node, log, latency = self._voter.node, self._voter.log, self._voter.barrier.latency
        snapshot = node.snapshot
        return QuorumStatus(
            node_id=self._settings.node_id,
            cluster_id=self._settings.cluster_id,
            role=self.role,
            term=node.term,
            leader_id=node.leader_id,
            active=node.active_epoch is not None,
            commit_index=node.commit_index,
            applied=node.applied,
            log_start_offset=log.first_index + 1,
            log_last_offset=log.last_index,
            log_synced_offset=log.synced_index,
            log_entries=len(log.entries) - 1,
            log_bytes=log.payload_bytes,
            snapshot_offset=snapshot.offset if snapshot is not None else 0,
            snapshot_epoch=snapshot.epoch if snapshot is not None else 0,
            snapshot_bytes=snapshot.size if snapshot is not None else 0,
            snapshot_bytes_max=self._settings.snapshot_bytes_max,
            snapshot_taken_bytes=self._voter.snapshot_taken_bytes,
            snapshots_not_stored=self._voter.snapshots_not_stored,
            pending_proposals=self._pending.count,
            peers=tuple(
                map(self._peer_status, sorted(set(self._settings.voters) - {node.node_id}))
            ),
            sync=LatencyStatus(
                count=latency.count,
                total_ns=latency.total_ns,
                last_ns=latency.last_ns,
                max_ns=latency.max_ns,
                entries=latency.entries,
                bytes=latency.bytes,
                buckets=tuple(latency.latencies.cumulative()),
            ),
        )

    def _peer_status(self, peer_id: int) -> PeerStatus:
        match_index, next_index, age_s = self._voter.node.progress_of(peer_id)
        return PeerStatus(
            node_id=peer_id,
            connected=self._voter.node.is_connected(peer_id),
            match_index=match_index,
            next_index=next_index,
            last_response_age_ms=int(age_s * 1000),
            receives_snapshot=self._voter.node.is_sending_snapshot_to(peer_id),
        )

    def _wake_applied_waiters(self, *, everyone: bool = False) -> None:
        waiting = []
        for waiter in self._applied_waiters:
            if everyone or waiter[0] <= self.applied:
                if not waiter[1].done():
                    waiter[1].set_result(None)
            else:
                waiting.append(waiter)
        self._applied_waiters = waiting


class _Relay:
    """Implements `VoterEvents`: passes the events of the voter to pending proposals, listeners and waiting callers."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum

    def applied(self, offset: int, epoch: int) -> None:
        self._quorum._pending.applied(offset, epoch)

    def restored(self, offset: int, epoch: int) -> None:
        self._quorum._pending.restored(offset)
        self._quorum._wake_applied_waiters()

    def active(self, epoch: int) -> None:
        for on_active, _ in self._quorum._listeners:
            on_active(epoch)

    def resigned(self, epoch: int) -> None:
        self._quorum._pending.fail_all("this controller is no longer the leader")
        for _, on_resigned in self._quorum._listeners:
            on_resigned(epoch)

    def moved(self) -> None:
        self._quorum._wake_applied_waiters()
