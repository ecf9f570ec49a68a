"""The quorum's face: start, propose, listen, feed, status; and the shell around `RaftNode`.

The shell owns what waits: the event loop's timers, two disk threads (log and vote; snapshots), the
network, the futures of proposals. It decides nothing. Whatever must not be survived (a failed write,
a state machine that raises, a broken invariant, a task that died) ends the process with status 70 on
the spot: a voter that goes on in doubt is worse than one that is gone.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from odradek_metadata_quorum.quorum.errors import (
    NotLeader,
    OutcomeUnknown,
    ProposalTooLarge,
    QuorumOverloaded,
)
from odradek_metadata_quorum.quorum.network.outbox import Outbox
from odradek_metadata_quorum.quorum.network.transport import VoterNetwork
from odradek_metadata_quorum.quorum.network.wire import Message
from odradek_metadata_quorum.quorum.proposals import PendingProposals
from odradek_metadata_quorum.quorum.raft.engine import CANDIDATE
from odradek_metadata_quorum.quorum.raft.hardened_engine import RaftTimers
from odradek_metadata_quorum.quorum.raft.raft_node import RaftNode
from odradek_metadata_quorum.quorum.raft.replicating_engine import RaftLimits
from odradek_metadata_quorum.quorum.settings import QuorumSettings
from odradek_metadata_quorum.quorum.state_machine import (
    CommittedEntry,
    StateMachine,
    StateSnapshot,
)
from odradek_metadata_quorum.quorum.status import (
    LatencyStatus,
    PeerStatus,
    QuorumRole,
    QuorumStatus,
)
from odradek_metadata_quorum.quorum.storage.disk import DirectoryDisk
from odradek_metadata_quorum.quorum.storage.disk_queue import DiskThread, Fatal
from odradek_metadata_quorum.quorum.storage.snapshot_store import SnapshotStore
from odradek_metadata_quorum.quorum.storage.vote_file import VoteFile
from odradek_metadata_quorum.quorum.storage.write_ahead_log import WriteAheadLog
from odradek_metadata_quorum.quorum.storage.write_barrier import WriteBarrier
from odradek_metadata_quorum.quorum.storage_format import (
    StorageIdentity,
    check_disk,
    save_identity,
)
from odradek_runtime.logs import event_log

EXIT_FATAL: Final = 70
_STOP_TRANSFER_S: Final = 1.0
_FEED_ENTRIES_MAX: Final = 10_000
_JOIN_WARNING_S: Final = 5.0

_log = event_log(__name__)


def end_process(reason: str, error: BaseException | None) -> None:
    """Say why, and be gone before anything else can be sent. Callable from any thread."""
    _log.error("The quorum cannot go on", exc=error, reason=reason)
    os._exit(EXIT_FATAL)


class Quorum:
    """One voter: a replicated log, elections, and the state machine it feeds.

    Everything runs on the event loop that called `start`; disk writes run on two own threads.
    `fatal` is for tests; the default ends the process.
    """

    def __init__(
        self,
        settings: QuorumSettings,
        state_machine: StateMachine,
        *,
        fatal: Fatal = end_process,
    ) -> None:
        self._settings = settings
        self._state_machine = state_machine
        self._fatal = fatal
        self._pending = PendingProposals()
        self._listeners: list[tuple[Callable[[int], None], Callable[[int], None]]] = []
        self._applied_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._step_handle: asyncio.Handle | None = None
        self._transferring = False
        self._stopping = False

    async def start(self) -> None:
        """Load snapshot and log, open the listener, take part. The directory must be formatted.

        Raises `StorageMismatch`, `CorruptStorage`, `InsecureListener`, `OSError` (port in use).
        """
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        self._disk = DirectoryDisk(settings.data_dir)
        try:
            await self._load()
            await self._network.listen()
        except BaseException:
            self._disk.close()
            raise
        self._supervisor = self._loop.create_task(self._supervise(), name="quorum")

    async def _load(self) -> None:
        settings = self._settings
        self._identity = check_disk(
            self._disk,
            StorageIdentity(
                cluster_id=settings.cluster_id,
                node_id=settings.node_id,
                voters=tuple(sorted(settings.voters)),
                joined=False,
            ),
            str(settings.data_dir),
        )
        self._vote_file = VoteFile(self._disk)
        self._log = await asyncio.to_thread(
            WriteAheadLog, self._disk, segment_bytes_max=settings.segment_bytes_max
        )
        self._snapshots = SnapshotStore(self._disk)
        self._log_thread = DiskThread("quorum-log", self._loop, self._fatal)
        self._snapshot_thread = DiskThread("quorum-snapshot", self._loop, self._fatal)
        self._network = VoterNetwork(
            settings,
            on_message=self._guarded(self._received),
            on_connected=self._guarded(self._connected),
            on_disconnected=self._guarded(self._disconnected),
        )
        self._barrier = WriteBarrier(
            self._log, self._vote_file, self._log_thread, on_durable=self._guarded(self._durable)
        )
        outbox = Outbox(
            self._barrier, self._network.send_frame, bytes_max=settings.peer_queue_bytes_max
        )
        self._node = RaftNode(
            node_id=settings.node_id,
            voters=settings.voters,
            joined=self._identity.joined,
            barrier=self._barrier,
            outbox=outbox,
            queued_bytes=self._network.queued_bytes,
            snapshots=self._snapshots,
            log_queue=self._log_thread,
            snapshot_queue=self._snapshot_thread,
            state_machine=self._state_machine,
            timers=_raft_timers(settings),
            limits=_raft_limits(settings),
            clock=time.monotonic,
            randomness=random.Random(),
            events=_NodeEvents(self),
            fatal=self._fatal,
        )

    async def stop(self) -> None:
        """Hand leadership over if held (bounded), fail what is pending as unknown, close all."""
        if self._stopping:
            return
        if self._node.is_leader and len(self._settings.voters) > 1:
            await self.transfer_leadership(_STOP_TRANSFER_S)
        self._stopping = True
        self._node.resign()
        self._node.halted = True
        self._pending.fail_all("this controller stopped")
        self._supervisor.cancel()
        await asyncio.wait({self._supervisor})
        await self._network.close()
        await self._log_thread.close()
        await self._snapshot_thread.close()
        self._log.close()
        self._vote_file.close()
        self._disk.close()
        self._wake_applied_waiters(everyone=True)

    # Proposals.

    async def propose(self, payload: bytes, *, epoch: int, timeout_s: float) -> int:
        """Replicate one entry; returns its offset once it is committed and applied here.

        `epoch` is the term the caller decided under: the entry is never appended in another.
        Raises `NotLeader`, `ProposalTooLarge`, `QuorumOverloaded` (nothing was appended) or
        `OutcomeUnknown` (leadership lost, or `timeout_s` passed). An empty payload is refused with
        ValueError: it stands for a leader's no-op in the feed.
        """
        settings = self._settings
        if not payload:
            raise ValueError("a proposal must not be empty")
        if len(payload) > settings.proposal_bytes_max:
            raise ProposalTooLarge(
                f"a proposal of {len(payload)} bytes is over the limit of"
                f" {settings.proposal_bytes_max}: split it"
            )
        if (
            self._pending.count >= settings.pending_proposals_max
            or self._pending.payload_bytes + len(payload) > settings.pending_bytes_max
        ):
            raise QuorumOverloaded(f"{self._pending.count} proposals wait for their commit")
        offset = None if self._transferring else self._node.propose(payload, epoch)
        if offset is None:
            raise NotLeader(
                f"controller {settings.node_id} does not lead epoch {epoch}",
                leader_id=self.leader_id,
            )
        future = self._pending.add(offset, epoch, len(payload))
        self._wake(0.0)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise OutcomeUnknown(f"entry {offset} did not commit within {timeout_s} s") from None
        finally:
            self._pending.forget(offset, epoch)

    # Leadership.

    def add_leadership_listener(
        self, *, on_active: Callable[[int], None], on_resigned: Callable[[int], None]
    ) -> None:
        """Call `on_active(epoch)` when this node leads and has applied its own no-op of that term;

        `on_resigned(epoch)` at once when that ends, after every pending proposal has failed.
        Both run on the loop and must not raise: that ends the process. Add before `start`.
        """
        self._listeners.append((on_active, on_resigned))

    async def transfer_leadership(self, timeout_s: float) -> bool:
        """Hand leadership to the most caught-up peer; False if it stays here or was not here.

        Proposals are refused meanwhile, so that the peer can have the whole log.
        """
        node = self._node
        if not node.is_leader:
            return False
        self._transferring = True
        try:
            end_s = self._loop.time() + timeout_s
            asked_s = 0.0
            while node.is_leader and self._loop.time() < end_s:
                successor = node.best_successor()
                if successor is not None and self._loop.time() - asked_s > 0.1:
                    asked_s = self._loop.time()
                    node.hand_over(successor)
                await asyncio.sleep(0.005)
            return not node.is_leader
        finally:
            self._transferring = False

    @property
    def role(self) -> QuorumRole:
        """What this node is at this moment."""
        if not self._node.may_vote():
            return QuorumRole.JOINING
        if self._node.is_leader:
            return QuorumRole.LEADER
        if self._node._SyncObj__raftState == CANDIDATE:
            return QuorumRole.CANDIDATE
        return QuorumRole.FOLLOWER

    @property
    def leader_id(self) -> int | None:
        """The voter that leads, as far as known; None during an election."""
        return self._node.leader_id

    @property
    def term(self) -> int:
        """Raft's current term: the controller epoch of whoever leads in it."""
        return self._node.term

    @property
    def active_epoch(self) -> int | None:
        """The term in which this node is the active leader, None while it is not."""
        return None if self._transferring else self._node.active_epoch

    @property
    def commit_index(self) -> int:
        """The last entry known to be committed."""
        return self._node.commit_index

    @property
    def applied(self) -> int:
        """The last entry applied to the state machine; never above `commit_index`."""
        return self._node.applied

    @property
    def listen_port(self) -> int:
        """The port that peers reach this node at, once started."""
        return self._network.port

    # The feed.

    async def wait_applied(self, offset: int, timeout_s: float) -> int:
        """Wait until `applied >= offset`, at most `timeout_s`; returns `applied` either way."""
        if self.applied < offset and not self._stopping:
            future: asyncio.Future[None] = self._loop.create_future()
            waiter = (offset, future)
            self._applied_waiters.append(waiter)
            await asyncio.wait({future}, timeout=timeout_s)
            if waiter in self._applied_waiters:
                self._applied_waiters.remove(waiter)
        return self.applied

    def entries(self, from_offset: int, bytes_max: int) -> Sequence[CommittedEntry] | None:
        """Applied entries from `from_offset` on, of at most `bytes_max` (at least one entry).

        Empty when there are none yet; None where the log is trimmed: take `latest_snapshot`.
        """
        found = self._node.entries(from_offset, _FEED_ENTRIES_MAX)
        if found is None:
            return None
        taken: list[CommittedEntry] = []
        total = 0
        for command, offset, epoch in found:
            total += len(command)
            if taken and total > bytes_max:
                break
            taken.append(CommittedEntry(offset, epoch, command[1:]))
        return taken

    async def latest_snapshot(self) -> StateSnapshot | None:
        """The newest snapshot on disk, None when none was taken yet (then the log is whole)."""
        while (opened := self._snapshots.open_current()) is None:
            if self._snapshots.current is None:
                return None
            await asyncio.sleep(0)  # it is being replaced right now
        try:
            data = await asyncio.to_thread(opened.read)
        finally:
            opened.close()
        return StateSnapshot(opened.snapshot.offset, opened.snapshot.epoch, data)

    def status(self) -> QuorumStatus:
        """One reading of everything worth a metric."""
        node, log, latency = self._node, self._log, self._barrier.latency
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
            ),
        )

    def _peer_status(self, peer_id: int) -> PeerStatus:
        match_index, next_index, age_s = self._node.progress_of(peer_id)
        return PeerStatus(
            node_id=peer_id,
            connected=self._node.is_connected(peer_id),
            match_index=match_index,
            next_index=next_index,
            last_response_age_ms=int(age_s * 1000),
            receives_snapshot=self._node.is_sending_snapshot_to(peer_id),
        )

    # The shell.

    async def _supervise(self) -> None:
        """Every task of the quorum; one that ends by itself ends the process."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._network.start_dialling(tasks)
                tasks.create_task(self._tick_for_ever(), name="quorum-tick")
                if not self._identity.joined:
                    tasks.create_task(self._warn_while_joining(), name="quorum-joining")
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fatal("a task of the quorum died", error)

    async def _tick_for_ever(self) -> None:
        tick_s = self._settings.timers.tick_interval_ms / 1000
        while True:
            self._step()
            await asyncio.sleep(tick_s)

    async def _warn_while_joining(self) -> None:
        """An empty voter waits for all others; say so, or it looks like a hang."""
        while not self._node.may_vote():
            await asyncio.sleep(_JOIN_WARNING_S)
            if not self._node.may_vote():
                _log.warning(
                    "This controller's directory is empty, so it must hear of every other voter"
                    " before it may vote",
                    missing_controllers=self._node.joining.missing,
                    leader_id=self.leader_id,
                )

    def _guarded(self, call: Callable[..., None]) -> Callable[..., None]:
        """A bug in what the loop calls is no network error: it ends the process."""

        def guarded(*arguments: object) -> None:
            try:
                call(*arguments)
            except Exception as error:
                self._node.halted = True
                self._fatal("a bug in the quorum", error)

        return guarded

    def _received(self, peer_id: int, message: Message) -> None:
        self._node.receive(peer_id, message)
        self._wake(0.0)

    def _connected(self, peer_id: int) -> None:
        self._node.peer_connected(peer_id)
        _log.info("Reached a controller", peer_id=peer_id)

    def _disconnected(self, peer_id: int) -> None:
        self._node.peer_disconnected(peer_id)
        _log.info("Lost a controller", peer_id=peer_id)

    def _durable(self) -> None:
        self._node.durable_moved()

    def _wake(self, delay_s: float) -> None:
        if delay_s > 0.0:
            self._loop.call_later(delay_s, self._wake, 0.0)
        elif self._step_handle is None:
            self._step_handle = self._loop.call_soon(self._guarded_step)

    def _guarded_step(self) -> None:
        self._step_handle = None
        try:
            self._step()
        except Exception as error:
            self._node.halted = True
            self._fatal("a bug in the quorum", error)

    def _step(self) -> None:
        before = self._node.applied
        self._node.step()
        if self._node.applied > before:
            self._wake_applied_waiters()

    def _wake_applied_waiters(self, *, everyone: bool = False) -> None:
        waiting = []
        for waiter in self._applied_waiters:
            if everyone or waiter[0] <= self.applied:
                if not waiter[1].done():
                    waiter[1].set_result(None)
            else:
                waiting.append(waiter)
        self._applied_waiters = waiting


class _NodeEvents:
    """What the node tells the shell (`RaftEvents`)."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._pending = quorum._pending

    def wake(self, delay_s: float) -> None:
        self._quorum._wake(delay_s)

    def applied(self, offset: int, epoch: int) -> None:
        self._pending.applied(offset, epoch)

    def restored(self, offset: int, epoch: int) -> None:
        self._pending.restored(offset)
        self._quorum._wake_applied_waiters()
        _log.info("Installed a snapshot", offset=offset, epoch=epoch)

    def active(self, epoch: int) -> None:
        _log.info("Became the active controller", epoch=epoch)
        for on_active, _ in self._quorum._listeners:
            on_active(epoch)

    def resigned(self, epoch: int) -> None:
        _log.info("Stopped leading", epoch=epoch)
        self._pending.fail_all("this controller does not lead any more")
        for _, on_resigned in self._quorum._listeners:
            on_resigned(epoch)

    def joined(self) -> None:
        quorum = self._quorum
        old = quorum._identity
        identity = StorageIdentity(
            cluster_id=old.cluster_id, node_id=old.node_id, voters=old.voters, joined=True
        )

        def confirmed(_: None) -> None:
            quorum._identity = identity
            quorum._node.confirm_joined()
            _log.info("Joined the quorum", term=quorum.term)

        quorum._log_thread.submit(lambda: save_identity(quorum._disk, identity), confirmed)


def _raft_timers(settings: QuorumSettings) -> RaftTimers:
    timers = settings.timers
    return RaftTimers(
        election_min_s=timers.election_timeout_min_ms / 1000,
        election_max_s=timers.election_timeout_max_ms / 1000,
        heartbeat_s=timers.heartbeat_interval_ms / 1000,
        fallback_s=timers.leader_fallback_ms / 1000,
        tick_s=timers.tick_interval_ms / 1000,
    )


def _raft_limits(settings: QuorumSettings) -> RaftLimits:
    return RaftLimits(
        snapshot_interval_entries=settings.snapshot_interval_entries,
        snapshot_interval_bytes=settings.snapshot_interval_bytes,
        snapshot_entries_min=settings.snapshot_entries_min,
        snapshot_entries_bytes_max=settings.snapshot_entries_bytes_max,
        snapshot_chunk_bytes=settings.snapshot_chunk_bytes,
        snapshot_bytes_max=settings.snapshot_bytes_max,
        window_bytes_max=settings.peer_queue_bytes_max // 2,
    )
