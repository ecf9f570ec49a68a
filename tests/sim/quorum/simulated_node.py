"""One process of a voter: the production code's node on a simulated disk, and its surroundings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from odradek_metadata_quorum.network.outbox import Outbox
from odradek_metadata_quorum.network.wire import Message
from odradek_metadata_quorum.raft.node import RaftNode
from odradek_metadata_quorum.storage.data_directory import (
    check_disk,
    save_identity,
)
from odradek_metadata_quorum.storage.snapshot_store import SnapshotStore
from odradek_metadata_quorum.storage.vote_file import VoteFile
from odradek_metadata_quorum.storage.write_ahead_log import WriteAheadLog
from odradek_metadata_quorum.storage.write_barrier import WriteBarrier
from tests.sim.quorum.oracle import DigestMachine, OracleError
from tests.sim.quorum.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from tests.sim.quorum.world import World

CLUSTER_ID = "sim"


class NodeDied(Exception):
    """The production code ended the process (`fatal`)."""


class SimulatedQueue:
    """The queue of disk work (implements `DiskQueue`): jobs run in order, and each takes simulated time."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        # Called in place of the next job, to end this process of the voter.
        self.at_next_job: Callable[[], None] | None = None

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((job, done))
        if len(self.jobs) == 1:
            self._schedule()

    def _schedule(self) -> None:
        world = self._node.world
        world.after(world.disk_delay_s(), self._node.alive(self._run))

    def _run(self) -> None:
        at_next_job, self.at_next_job = self.at_next_job, None
        if at_next_job is not None:
            at_next_job()
            return
        job, done = self.jobs[0]
        try:
            result = job()
        except OSError as error:
            self._node.died(f"a write to the quorum's disk failed: {error}")
            return
        self.jobs.pop(0)
        if self.jobs:
            self._schedule()
        self._node.world.note(self._node.node_id, "disk")
        self._node.entering(lambda: done(result))


class SimulatedNode:
    """One process of a voter, from its start to its end."""

    def __init__(self, world: World, node_id: int, disk: SimulatedDisk) -> None:
        self.world = world
        self.node_id = node_id
        self.disk = disk
        self.life = world.next_life()
        self.dead: str | None = None
        # The process is stopped until this time (SIGSTOP, a paused machine).
        self.frozen_until = 0.0
        # Duration of one iteration of the event loop; events in this time wait for the next iteration.
        self.turn_s = 0.0
        self._turn_began_s = 0.0
        self.machine = DigestMachine(node_id, world.oracle)
        self.pending: dict[int, tuple[int, bytes]] = {}
        self.unknown: list[int] = []
        self.activations: list[int] = []
        self.resignations: list[int] = []
        self.snapshots_weighed: list[tuple[int, OSError | None]] = []
        self.snapshots_refused: list[tuple[int, int]] = []
        self.snapshots_without_room: list[tuple[int, int]] = []
        self._wake_s: float | None = None
        identity = check_disk(disk, world.identity(node_id), "sim")
        self.queue = SimulatedQueue(self)
        self.snapshot_queue = SimulatedQueue(self)
        self.barrier = WriteBarrier(
            WriteAheadLog(disk, segment_bytes_max=world.segment_bytes_max),
            VoteFile(disk),
            self.queue,
            on_durable=lambda: self.raft.became_durable(),
        )
        self.snapshots = SnapshotStore(disk)
        self.outbox = Outbox(
            self.barrier,
            lambda peer, frame: world.send(self, peer, frame),
            bytes_max=128 << 10,
        )
        self.raft = RaftNode(
            node_id=node_id,
            voters=world.voters,
            joined=identity.joined,
            barrier=self.barrier,
            outbox=self.outbox,
            queued_bytes=lambda peer: world.queued_bytes(node_id, peer),
            snapshots=self.snapshots,
            log_queue=self.queue,
            snapshot_queue=self.snapshot_queue,
            state_machine=self.machine,
            timers=world.timers,
            limits=world.limits,
            clock=lambda: world.now,
            randomness=world.random,
            events=self,
            fatal=self._fatal,
        )
        self._tick()

    # Methods of RaftEvents.

    def wake(self, delay_s: float) -> None:
        due = self.world.now + delay_s
        if self._wake_s is None or due < self._wake_s:
            self._wake_s = due
            self.world.after(delay_s, self.alive(lambda: self._woken(due)))

    def _woken(self, due: float) -> None:
        if self._wake_s == due:
            self._wake_s = None
            self.step()

    def applied(self, offset: int, epoch: int) -> None:
        pending = self.pending.pop(offset, None)
        if pending is not None:
            if pending[0] == epoch:
                self.world.oracle.acknowledge(offset, pending[1])
            else:
                self.unknown.append(offset)

    def restored(self, offset: int, epoch: int) -> None:
        self.world.counts["snapshot installed"] += 1
        for waiting in [waiting for waiting in self.pending if waiting <= offset]:
            del self.pending[waiting]
            self.unknown.append(waiting)
        digests = self.world.oracle.digests
        known = max(digests, default=0) >= offset
        if known and digests[self._last_regular(offset)] != self.machine.digest:
            raise OracleError(f"node {self.node_id} restored a different state at {offset}")

    def _last_regular(self, offset: int) -> int:
        """Return the last offset up to this one whose entry changed the state. No-ops do not change the state."""
        while offset > 0 and offset not in self.world.oracle.digests:
            offset -= 1
        return offset

    def active(self, epoch: int) -> None:
        self.activations.append(epoch)
        self.world.counts["active"] += 1

    def resigned(self, epoch: int) -> None:
        self.resignations.append(epoch)
        self.unknown.extend(self.pending)
        self.pending.clear()

    def snapshot_weighed(self, size: int, size_max: int, failure: OSError | None) -> None:
        self.snapshots_weighed.append((size, failure))

    def snapshot_refused(self, peer_id: int, size: int, size_max: int) -> None:
        self.snapshots_refused.append((peer_id, size))

    def snapshot_found_no_room(self, peer_id: int, size: int, failure: OSError) -> None:
        self.snapshots_without_room.append((peer_id, size))

    def joined(self) -> None:
        identity = self.world.identity(self.node_id, joined=True)
        self.queue.submit(
            lambda: save_identity(self.disk, identity), lambda _: self.raft.confirm_joined()
        )

    # The event loop and the clients.

    def alive(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return a callback that calls `call`, or does nothing if this process of the voter has ended."""

        def guarded() -> None:
            if self.dead is not None or self.world.nodes.get(self.node_id) is not self:
                return
            busy_until = self.busy_until()
            if busy_until > self.world.now:
                self.world.at(busy_until, guarded)
                return
            self.entering(call)

        return guarded

    def busy_until(self) -> float:
        """Return the time from which the process handles events again; at most the current time if it handles them now.

        An iteration of its event loop handles all events that wait at the beginning of the iteration.
        """
        now = self.world.now
        if self.frozen_until > now:
            return self.frozen_until
        ends_s = self._turn_began_s + self.turn_s
        if now < ends_s and now != self._turn_began_s:
            return ends_s
        if now != self._turn_began_s:
            self._turn_began_s = now
        return now

    def entering(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(NodeDied):
            call()

    def _tick(self) -> None:
        self.step()
        self.world.after(self.world.timers.tick_s, self.alive(self._tick))

    def step(self) -> None:
        self.raft.step()
        if self.raft.is_leader:
            self.world.oracle.leads(self.node_id, self.raft.term)

    def receive(self, peer_id: int, message: Message) -> None:
        """Deliver one message, and let the node process it."""
        self.raft.receive(peer_id, message)
        self.step()

    def propose(self, payload: bytes) -> int | None:
        """Propose an entry, and return its offset; None if this node is not the active leader."""
        epoch = self.raft.active_epoch
        if epoch is None:
            return None
        offset = self.raft.propose(payload, epoch)
        if offset is not None:
            self.pending[offset] = (epoch, payload)
            self.wake(0.0)
        return offset

    def read(self) -> None:
        """Read the active leader's state for a client. The response waits for a majority."""
        world, asked_s, seen = self.world, self.world.now, self.raft.applied
        newest = max(world.oracle.acknowledged, default=0)

        def confirmed(is_leader: bool) -> None:
            world.reads.append((is_leader, world.now - asked_s))
            if is_leader:
                world.oracle.answered_read(self.node_id, seen, newest)

        self.entering(lambda: self.raft.confirm_leadership(confirmed))
        self.wake(0.0)

    def _fatal(self, reason: str, error: BaseException | None) -> None:
        self.died(f"{reason}: {error!r}" if error is not None else reason)
        raise NodeDied(reason)

    def died(self, reason: str) -> None:
        """Record that the process ended itself."""
        self.dead = reason
        self.raft.stop()
        self.world.deaths.append((self.node_id, reason))
        self.world.lost_connections(self.node_id)
