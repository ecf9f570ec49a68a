"""A running voter: a `RaftNode` with timers, the network, and two disk threads, one for log and vote and one for
snapshots. All decisions of Raft are made in `RaftNode`.

If a disk write fails, the state machine raises an exception, an invariant is violated, or a task fails, the process
ends at once with status 70. Continuing with a state that may be wrong would be worse.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from odradek_metadata_quorum.network.outbox import Outbox
from odradek_metadata_quorum.network.transport import BrokerAddresses, VoterNetwork
from odradek_metadata_quorum.network.wire import Message
from odradek_metadata_quorum.raft.node import RaftNode
from odradek_metadata_quorum.raft.shell import RaftLimits, RaftTimers, StateMachine
from odradek_metadata_quorum.settings import SNAPSHOT_LIMIT_SETTING, QuorumSettings
from odradek_metadata_quorum.storage.data_directory import (
    StorageIdentity,
    check_disk,
    save_identity,
)
from odradek_metadata_quorum.storage.disk import DirectoryDisk, DiskThread, Fatal
from odradek_metadata_quorum.storage.snapshot_store import SnapshotStore
from odradek_metadata_quorum.storage.vote_file import VoteFile
from odradek_metadata_quorum.storage.write_ahead_log import WriteAheadLog
from odradek_metadata_quorum.storage.write_barrier import WriteBarrier
from odradek_runtime.logs import event_log

EXIT_FATAL: Final = 70
_JOIN_WARNING_S: Final = 5.0

_log = event_log(__name__)


def end_process(reason: str, error: BaseException | None) -> None:
    """Log the reason, and end the process at once, so that it sends no further message. Any thread may call this."""
    _log.error("Raft node failed; this controller process exits", exc=error, reason=reason)
    os._exit(EXIT_FATAL)


class VoterEvents(Protocol):
    """The events that a voter reports to its owner, on the event loop. The first four are those of `RaftEvents`."""

    def applied(self, offset: int, epoch: int) -> None:
        """Report that the entry at `offset`, with the term `epoch`, was applied."""

    def restored(self, offset: int, epoch: int) -> None:
        """Report that the leader's snapshot, which ends with the entry (offset, epoch), replaced the state."""

    def active(self, epoch: int) -> None:
        """Report that this node is the leader of term `epoch`, and has applied all entries of earlier terms."""

    def resigned(self, epoch: int) -> None:
        """Report that this node is no longer the leader of term `epoch`. Called even if `active` was not called."""

    def moved(self) -> None:
        """Report that `applied` has risen, once at the end of a step."""


class Voter:
    """A voter that runs between `open` and `close`. Use its `node` only on the event loop."""

    def __init__(
        self,
        settings: QuorumSettings,
        state_machine: StateMachine,
        *,
        events: VoterEvents,
        fatal: Fatal,
        broker_addresses: BrokerAddresses = list,
    ) -> None:
        self._settings = settings
        self._state_machine = state_machine
        self._events = events
        self._fatal = fatal
        self._broker_addresses = broker_addresses
        self._step_handle: asyncio.Handle | None = None
        # The last logged problem with a snapshot of the leader, and the size of that snapshot.
        self._logged_problem: tuple[str, int] | None = None
        self.snapshot_taken_bytes = 0
        self.snapshots_not_stored = 0

    async def open(self) -> None:
        """Lock and read the data directory, open the listener, and start the tasks.

        Raises `StorageMismatch`, `CorruptStorage`, `InsecureListener`, or `OSError` (the port is in use).
        """
        self._loop = asyncio.get_running_loop()
        self._disk = DirectoryDisk(self._settings.data_dir)
        self._log_thread = DiskThread("quorum-log", self._loop, self._fatal)
        self._snapshot_thread = DiskThread("quorum-snapshot", self._loop, self._fatal)
        try:
            await self._load()
            await self.network.listen()
        except BaseException:
            await self._close_disk()
            raise
        self._supervisor = self._loop.create_task(self._supervise(), name="quorum")

    async def close(self) -> None:
        """Resign as the leader, stop the node, and close the network and all files."""
        self.node.resign()
        self.node.stop()
        self._supervisor.cancel()
        await asyncio.wait({self._supervisor})
        await self.network.close()
        await self._close_disk()
        self.log.close()
        self._vote_file.close()

    async def _close_disk(self) -> None:
        await self._log_thread.close()
        await self._snapshot_thread.close()
        self._disk.close()

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
        self._vote_file = await asyncio.to_thread(VoteFile, self._disk)
        self.log = await asyncio.to_thread(
            WriteAheadLog, self._disk, segment_bytes_max=settings.segment_bytes_max
        )
        self.snapshots = await asyncio.to_thread(SnapshotStore, self._disk)
        self.network = VoterNetwork(
            settings,
            on_message=self._guarded(self._received),
            on_connected=self._guarded(self._connected),
            on_disconnected=self._guarded(self._disconnected),
            broker_addresses=self._broker_addresses,
        )
        self.barrier = WriteBarrier(
            self.log, self._vote_file, self._log_thread, on_durable=self._guarded(self._durable)
        )
        self.node = RaftNode(
            node_id=settings.node_id,
            voters=settings.voters,
            joined=self._identity.joined,
            barrier=self.barrier,
            outbox=Outbox(
                self.barrier, self.network.send_frame, bytes_max=settings.peer_queue_bytes_max
            ),
            queued_bytes=self.network.queued_bytes,
            snapshots=self.snapshots,
            log_queue=self._log_thread,
            snapshot_queue=self._snapshot_thread,
            state_machine=self._state_machine,
            timers=_raft_timers(settings),
            limits=_raft_limits(settings),
            clock=time.monotonic,
            randomness=random.Random(),
            events=self,
            fatal=self._fatal,
        )

    # Methods of RaftEvents.

    def wake(self, delay_s: float) -> None:
        """Call `step` after `delay_s`. Several requests for an immediate step result in one step."""
        if delay_s > 0.0:
            self._loop.call_later(delay_s, self.wake, 0.0)
        elif self._step_handle is None:
            self._step_handle = self._loop.call_soon(self._woken)

    def applied(self, offset: int, epoch: int) -> None:
        self._events.applied(offset, epoch)

    def restored(self, offset: int, epoch: int) -> None:
        self._logged_problem = None
        _log.info("Installed a metadata snapshot from the leader", offset=offset, epoch=epoch)
        self._events.restored(offset, epoch)

    def active(self, epoch: int) -> None:
        _log.info("Became the leader of the metadata quorum", epoch=epoch)
        self._events.active(epoch)

    def resigned(self, epoch: int) -> None:
        _log.info("Stopped leading the metadata quorum", epoch=epoch)
        self._events.resigned(epoch)

    def snapshot_weighed(self, size: int, size_max: int, failure: OSError | None) -> None:
        self.snapshot_taken_bytes = size
        limit = f"{SNAPSHOT_LIMIT_SETTING}={size_max}"
        if failure is not None:
            self.snapshots_not_stored += 1
            _log.error(
                "Metadata snapshot not stored because the disk is full; the log is not trimmed and grows",
                data_dir=str(self._settings.data_dir),
                error=str(failure),
                snapshot_bytes=size,
            )
        elif size > size_max:
            self.snapshots_not_stored += 1
            _log.error(
                "Metadata snapshot not stored because it is above the limit; the log is not trimmed and grows."
                " Raise the limit on every controller",
                snapshot_bytes=size,
                limit=limit,
            )
        elif size > size_max // 2:
            _log.warning(
                "Metadata snapshot is larger than half of the limit; raise the limit on every controller,"
                " because larger snapshots are not stored",
                snapshot_bytes=size,
                limit=limit,
            )

    def snapshot_refused(self, peer_id: int, size: int, size_max: int) -> None:
        if self._is_logged("limit", size):
            return
        _log.error(
            "Leader's metadata snapshot refused because it is above this controller's limit; this controller"
            " cannot catch up. Raise the limit on every controller",
            leader_id=peer_id,
            snapshot_bytes=size,
            limit=f"{SNAPSHOT_LIMIT_SETTING}={size_max}",
        )

    def snapshot_found_no_room(self, peer_id: int, size: int, failure: OSError) -> None:
        if self._is_logged("room", size):
            return
        _log.error(
            "Leader's metadata snapshot not stored because the disk is full; the leader will send it again",
            data_dir=str(self._settings.data_dir),
            leader_id=peer_id,
            snapshot_bytes=size,
            error=str(failure),
        )

    def _is_logged(self, problem: str, size: int) -> bool:
        """Return whether this problem is the last one that was logged, and store it as the last one. Otherwise each
        chunk of a snapshot would cause a log line.
        """
        logged, self._logged_problem = self._logged_problem, (problem, size)
        return logged == self._logged_problem

    def joined(self) -> None:
        identity = replace(self._identity, joined=True)

        def confirmed(_: None) -> None:
            self._identity = identity
            self.node.confirm_joined()
            _log.info("Joined the metadata quorum as a voter", term=self.node.term)

        self._log_thread.submit(lambda: save_identity(self._disk, identity), confirmed)

    # Tasks and callbacks on the event loop.

    async def _supervise(self) -> None:
        """Run all tasks of the voter. If a task fails, end the process."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self.network.start_dialling(tasks)
                tasks.create_task(self._tick_forever(), name="quorum-tick")
                if not self._identity.joined:
                    tasks.create_task(self._warn_while_joining(), name="quorum-joining")
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fatal("a task of the quorum failed", error)

    async def _tick_forever(self) -> None:
        tick_s = self._settings.timers.tick_interval_ms / 1000
        while True:
            self._step()
            await asyncio.sleep(tick_s)

    async def _warn_while_joining(self) -> None:
        """Log periodically for which voters this empty voter waits. Otherwise the process would seem to hang."""
        while not self.node.may_vote:
            await asyncio.sleep(_JOIN_WARNING_S)
            if not self.node.may_vote:
                _log.warning(
                    "Waiting for a response of every other voter before voting, because the data directory"
                    " of this controller is new",
                    missing_controllers=self.node.joining.missing,
                    leader_id=self.node.leader_id,
                )

    def _guarded(self, call: Callable[..., None]) -> Callable[..., None]:
        """Return a function that calls `call` and ends the process if it raises an exception, which must be a bug."""

        def guarded(*arguments: object) -> None:
            try:
                call(*arguments)
            except Exception as error:
                self.node.halt("a bug in the quorum", error)

        return guarded

    def _received(self, peer_id: int, message: Message) -> None:
        self.node.receive(peer_id, message)
        self.wake(0.0)

    def _connected(self, peer_id: int) -> None:
        self.node.peer_connected(peer_id)
        _log.info("Connected to another controller", peer_id=peer_id)

    def _disconnected(self, peer_id: int) -> None:
        self.node.peer_disconnected(peer_id)
        _log.info("Lost the connection to another controller", peer_id=peer_id)

    def _durable(self) -> None:
        self.node.became_durable()

    def _woken(self) -> None:
        self._step_handle = None
        try:
            self._step()
        except Exception as error:
            self.node.halt("a bug in the quorum", error)

    def _step(self) -> None:
        before = self.node.applied
        self.node.step()
        if self.node.applied > before:
            self._events.moved()


def _raft_timers(settings: QuorumSettings) -> RaftTimers:
    timers = settings.timers
    return RaftTimers(
        election_min_s=timers.election_timeout_min_ms / 1000,
        election_max_s=timers.election_timeout_max_ms / 1000,
        lost_leader_min_s=timers.lost_leader_timeout_min_ms / 1000,
        lost_leader_max_s=timers.lost_leader_timeout_max_ms / 1000,
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
