"""How entries and snapshots travel between voters, and how both become state.

On top of `HardenedEngine`, which decides what is committed:

- *Sending*: the engine sends entries to every connected peer; a peer whose next entry is trimmed is
  kept from it and gets a snapshot instead, a peer whose queue is full gets no entries until it
  drains. While entries wait for this voter's disk, all get heartbeats that name an entry which is
  on it: a slow disk silences no leader.
- *Applying*: committed and durable entries, in order, a bounded number a step. An entry that cannot
  be applied, or a gap in front of it, ends the process: guessing would be divergence.
- *Snapshots taken here*: every so many entries or bytes the state is captured on the loop, encoded
  and written on the snapshots' disk queue; then the log is trimmed, but for what slow followers may
  still want. One that is larger than others would take, or finds no room on the disk, is not kept:
  the voter goes on, keeps its log, and tries again after as many entries.
- *Snapshots received*: chunks go to a file of their own; only the whole one, checked, durable and
  newer than the state, replaces it. It is decoded on the snapshots' thread, and put in place on the
  loop. If our log agrees with it, the tail behind it stays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from odradek_metadata_quorum.quorum.errors import CorruptStorage
from odradek_metadata_quorum.quorum.network import wire
from odradek_metadata_quorum.quorum.network.outbox import Outbox
from odradek_metadata_quorum.quorum.network.wire import Message
from odradek_metadata_quorum.quorum.raft.electing_engine import RaftTimers
from odradek_metadata_quorum.quorum.raft.engine import COMMAND_NO_OP, COMMAND_REGULAR, ENGINE_CLOCK
from odradek_metadata_quorum.quorum.raft.hardened_engine import HardenedEngine
from odradek_metadata_quorum.quorum.raft.send_window import SendWindow
from odradek_metadata_quorum.quorum.raft.snapshot_transfer import SnapshotReceiver, SnapshotSender
from odradek_metadata_quorum.quorum.state_machine import StateMachine
from odradek_metadata_quorum.quorum.storage.disk_queue import DiskQueue, Fatal
from odradek_metadata_quorum.quorum.storage.snapshot_store import (
    SnapshotId,
    SnapshotNotWritten,
    SnapshotStore,
)
from odradek_metadata_quorum.quorum.storage.write_ahead_log import GENESIS_INDEX
from odradek_metadata_quorum.quorum.storage.write_barrier import WriteBarrier

APPLY_ENTRIES_MAX: Final = 1_000  # a step: the loop breathes between
APPLY_BYTES_MAX: Final = 256 << 10  # a step, give or take an entry: some 50 ms of replaying
SNAPSHOT_RESEND_S: Final = 1.0


class RaftEvents(Protocol):
    """What a node tells its shell; all calls come from within `step` or `receive`."""

    def wake(self, delay_s: float) -> None:
        """Call `step` after `delay_s`, or earlier."""

    def applied(self, offset: int, epoch: int) -> None:
        """The entry is applied (or a snapshot that ends with it was restored)."""

    def restored(self, offset: int, epoch: int) -> None:
        """A snapshot replaced the state."""

    def active(self, epoch: int) -> None:
        """This node leads, and has applied everything before its term."""

    def resigned(self, epoch: int) -> None:
        """It does not lead any more; also if it never got active."""

    def joined(self) -> None:
        """It may vote from now on; make that durable, then call `confirm_joined`."""

    def snapshot_weighed(self, size: int, size_max: int, failure: OSError | None) -> None:
        """A snapshot was taken here; it is stored unless it is too large or `failure` says why not."""

    def snapshot_refused(self, peer_id: int, size: int, size_max: int) -> None:
        """The leader sends a snapshot that is larger than this node takes; called for each chunk."""

    def snapshot_found_no_room(self, peer_id: int, size: int, failure: OSError) -> None:
        """The leader's snapshot does not fit on this node's disk; the leader sends it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftLimits:
    """Counts and bytes; see `QuorumSettings`."""

    snapshot_interval_entries: int
    snapshot_interval_bytes: int
    snapshot_entries_min: int
    snapshot_entries_bytes_max: int
    snapshot_chunk_bytes: int
    snapshot_bytes_max: int
    window_bytes_max: int  # waiting for one peer: no more entries are sent to it


class ReplicatingEngine(HardenedEngine):
    """See the module. Not for use by itself: see `RaftNode`."""

    def __init__(
        self,
        *,
        node_id: int,
        voters: Iterable[int],
        barrier: WriteBarrier,
        outbox: Outbox,
        queued_bytes: Callable[[int], int],
        snapshots: SnapshotStore,
        log_queue: DiskQueue,
        snapshot_queue: DiskQueue,
        state_machine: StateMachine,
        timers: RaftTimers,
        limits: RaftLimits,
        clock: Callable[[], float],
        randomness: random.Random,
        events: RaftEvents,
        fatal: Fatal,
    ) -> None:
        """Loads snapshot and log at once: a node never votes on half of what it knows.

        `queued_bytes(peer_id)` tells what the network still holds for a peer. Raises
        `CorruptStorage`.
        """
        self._state_machine = state_machine
        self._snapshots = snapshots
        self._log_queue = log_queue
        self._snapshot_queue = snapshot_queue
        self._limits = limits
        self._events = events
        self._queued_bytes = queued_bytes
        self._receiver = SnapshotReceiver(
            snapshots, snapshot_queue, self._decode, bytes_max=limits.snapshot_bytes_max
        )
        self._senders: dict[int, SnapshotSender] = {}
        self._snapshotting = False
        self._snapshot_tried_at = 0
        self._bytes_since_snapshot = 0
        self._told = (0, 0)  # (last index, commit index) that peers were told
        self._commit_notice_s: float | None = None
        self._resend = False
        self._paused: set[int] = set()
        self._windows = {peer_id: SendWindow() for peer_id in voters}
        self._probe_due_s = 0.0
        self._beat_due_s = 0.0
        self.active_epoch: int | None = None
        self._led_term: int | None = None
        restored = self._load_snapshot(barrier)
        self.snapshot = snapshots.current
        super().__init__(
            node_id=node_id,
            voters=voters,
            barrier=barrier,
            outbox=outbox,
            timers=timers,
            clock=clock,
            randomness=randomness,
            fatal=fatal,
        )
        self._SyncObj__raftLastApplied = restored[0]
        self._SyncObj__raftCommitIndex = restored[0]
        self._applied_term = restored[1]

    def _load_snapshot(self, barrier: WriteBarrier) -> tuple[int, int]:
        """Restore the state and make the log follow it; the (index, term) it stands at."""
        log = barrier.log
        data = self._snapshots.read_current()
        snapshot = self._snapshots.current
        if data is None or snapshot is None:
            if log.first_index != GENESIS_INDEX:
                raise CorruptStorage(
                    f"the log starts after entry {log.first_index}, but there is no snapshot"
                )
            return GENESIS_INDEX, 0
        if snapshot.offset < log.first_index:
            raise CorruptStorage(
                f"the log starts after entry {log.first_index}, the snapshot ends at"
                f" {snapshot.offset}"
            )
        self._state_machine.restore(snapshot.offset, snapshot.epoch, data)()
        if log.term_at(snapshot.offset) != snapshot.epoch:
            # It was installed, and the crash came before the log was reset: finish that.
            log.reset(snapshot.offset, snapshot.epoch)
        return snapshot.offset, snapshot.epoch

    # Applying.

    def _SyncObj__applyLogEntries(self) -> bool:
        end = min(self.commit_index, self._log.synced_index, self.applied + APPLY_ENTRIES_MAX)
        if end > self.applied:
            self._apply(end)
        if (
            self.active_epoch is None
            and self.is_leader
            and not self.halted
            and self.applied >= self._SyncObj__noopIDx
        ):
            self.active_epoch = self._led_term
            assert self.active_epoch == self.term, (self.active_epoch, self.term)
            self._events.active(self.term)
        return False

    def _apply(self, end: int) -> None:
        first = self._log.first_index
        if self.applied < first:
            self.halt(f"entry {self.applied + 1} is missing, the log starts after {first}")
            return
        entries = self._log.entries[self.applied + 1 - first : end + 1 - first]
        applied_bytes = 0
        for command, index, term in entries:
            if index != self.applied + 1:
                self.halt(f"entry {self.applied + 1} is missing, the next one is {index}")
                return
            if command[:1] == COMMAND_REGULAR:
                try:
                    self._state_machine.apply(index, term, command[1:])
                except Exception as error:
                    self._apply_failed(index, error)
                    return
            elif command[:1] != COMMAND_NO_OP:
                self.halt(
                    f"entry {index} is of kind {command[0]}, which a newer program wrote: start this"
                    " controller with that program"
                )
                return
            self._SyncObj__raftLastApplied = index
            self._applied_term = term
            applied_bytes += len(command)
            self._bytes_since_snapshot += len(command)
            self._events.applied(index, term)
            if applied_bytes >= APPLY_BYTES_MAX:
                end = index
                break
        if self.applied != end:
            self.halt(f"entries up to {end} are committed, the log ends at {self.applied}")
            return
        if min(self.commit_index, self._log.synced_index) > end:
            self._events.wake(0.0)
        self._snapshot_if_due()

    def _apply_failed(self, index: int, error: Exception) -> None:
        self.halt(f"the state machine failed on entry {index}", error)

    # Snapshots taken here.

    def _snapshot_if_due(self) -> None:
        taken = self.snapshot.offset if self.snapshot is not None else GENESIS_INDEX
        taken = max(taken, self._snapshot_tried_at)
        if self._snapshotting or (
            self.applied - taken < self._limits.snapshot_interval_entries
            and self._bytes_since_snapshot < self._limits.snapshot_interval_bytes
        ):
            return
        self._snapshotting = True
        self._bytes_since_snapshot = 0
        offset, epoch = self.applied, self._applied_term
        self._snapshot_tried_at = offset
        encode = self._state_machine.snapshot()
        size_max = self._limits.snapshot_bytes_max

        def write() -> tuple[int, SnapshotId | OSError | None]:
            data = encode()
            if not self._may_store(len(data), size_max):
                return len(data), None
            try:
                return len(data), self._snapshots.write(offset, epoch, data)
            except SnapshotNotWritten as error:
                return len(data), error

        self._snapshot_queue.submit(write, self._snapshot_written)

    @staticmethod
    def _may_store(size: int, size_max: int) -> bool:
        """Whether other voters would take a snapshot of this size; kept otherwise, it heals nobody."""
        return size <= size_max

    def _snapshot_written(self, written: tuple[int, SnapshotId | OSError | None]) -> None:
        size, snapshot = written
        self._snapshotting = False
        if self.halted:
            return
        failure = snapshot if isinstance(snapshot, OSError) else None
        self._events.snapshot_weighed(size, self._limits.snapshot_bytes_max, failure)
        if snapshot is None or isinstance(snapshot, OSError):
            return
        if self.snapshot is None or snapshot.offset > self.snapshot.offset:
            self.snapshot = snapshot
        self._trim_behind(snapshot.offset)

    def _trim_behind(self, offset: int) -> None:
        """Keep what slow followers may want of the entries that a snapshot covers."""
        first = self._log.first_index
        index = max(first, offset - self._limits.snapshot_entries_min)
        entries = self._log.entries
        kept_bytes = sum(len(entry[0]) for entry in entries[index - first : offset - first])
        while index < offset and kept_bytes > self._limits.snapshot_entries_bytes_max:
            kept_bytes -= len(entries[index - first][0])
            index += 1
        self._trim(index)

    def _trim(self, index: int) -> None:
        """Drop entries below `index` from memory, and segments that hold none other from disk."""
        if index > self._log.first_index:
            self._log.trim_to(index)
            self._log_queue.submit(lambda: self._log.remove_before(index), lambda _: None)

    # Sending.

    def _SyncObj__sendAppendEntries(self) -> None:
        """The engine sends entries; who needs a snapshot, or cannot take more, is kept from it."""
        self._resend = False
        self._told = (self._log.last_index, self.commit_index)
        self._commit_notice_s = None
        connected = self._SyncObj__connectedNodes
        behind, full = [], []
        self._paused.clear()
        for peer_id, node in self._peers.items():
            if node in connected:
                if self._SyncObj__raftNextIndex[node] <= self._log.first_index:
                    behind.append(peer_id)
                    self._paused.add(peer_id)
                elif self._is_full(peer_id):
                    full.append(peer_id)
                    self._paused.add(peer_id)
        for peer_id in self._paused:
            connected.discard(self._peers[peer_id])
        super()._SyncObj__sendAppendEntries()
        for peer_id in self._paused:
            connected.add(self._peers[peer_id])
        for peer_id in behind:
            self._send_snapshot(peer_id)
        self._probe(full)

    def _probe(self, peer_ids: list[int]) -> None:
        """Instead of entries: a heartbeat, and the question whether the last entry sent arrived."""
        now_s = ENGINE_CLOCK.read()
        if not peer_ids or now_s < self._probe_due_s:
            return
        self._probe_due_s = now_s + self._timers.heartbeat_s
        for peer_id in peer_ids:
            node = self._peers[peer_id]
            heartbeat = self._heartbeat(node)
            self.tell(peer_id, heartbeat)
            last_sent = self._SyncObj__raftNextIndex[node] - 1
            if last_sent > heartbeat["prevLogIdx"]:
                term = self._log.term_at(last_sent)
                self.tell(peer_id, {**heartbeat, "prevLogIdx": last_sent, "prevLogTerm": term})

    def _beat(self) -> None:
        """Heartbeats besides the engine's, whose next ones may all wait behind new entries."""
        now_s = ENGINE_CLOCK.read()
        if now_s < self._beat_due_s:
            return
        self._beat_due_s = now_s + self._timers.heartbeat_s
        for peer_id, node in self._peers.items():
            if self._SyncObj__raftNextIndex[node] > self._log.first_index:
                self.tell(peer_id, self._heartbeat(node))

    def _heartbeat(self, node: Any) -> Message:
        """append_entries without entries that names one which both ends have, as far as known."""
        first, match = self._log.first_index, self._SyncObj__raftMatchIndex[node]
        if match < first:
            match = self._SyncObj__raftNextIndex[node] - 1
        index = max(first, min(match, self._log.synced_index))
        return {
            "type": wire.APPEND_ENTRIES,
            "term": self.term,
            "commit_index": self.commit_index,
            "entries": [],
            "prevLogIdx": index,
            "prevLogTerm": self._log.term_at(index),
        }

    def _send_from_engine(self, node: Any, message: Message) -> bool:
        if (
            message["type"] == wire.APPEND_ENTRIES
            and not message["entries"]
            and self._barrier.needed_for_index(message["prevLogIdx"])
        ):
            message = self._heartbeat(node)
        super()._send_from_engine(node, message)
        if message.get("entries"):
            self._windows[node.id].sent(message["entries"])
            if self._is_full(node.id):
                self._paused.add(node.id)  # the engine stops at a peer that is not connected
                self._SyncObj__connectedNodes.discard(node)
                self._resend = True
        return True

    def _is_full(self, peer_id: int) -> bool:
        waiting = self._outbox.waiting_bytes(peer_id) + self._queued_bytes(peer_id)
        window_max = self._limits.window_bytes_max
        return bool(waiting > window_max or self._windows[peer_id].bytes > window_max)

    def _on_next_node_idx(self, node: Any, message: Message) -> None:
        window = self._windows[node.id]
        was_full = self._is_full(node.id)
        super()._on_next_node_idx(node, message)
        if message["reset"]:
            window.clear()
        elif message["success"]:
            window.acknowledged(message["next_node_idx"] - 1)
        if self.is_leader and (message["reset"] or (was_full and not self._is_full(node.id))):
            self._resend = True  # do not wait for the next heartbeat to go on from there
        if self.is_leader and self._SyncObj__raftNextIndex[node] > self._log.first_index:
            self._end_transfer(node.id)

    def is_sending_snapshot_to(self, peer_id: int) -> bool:
        """Whether a snapshot is on its way to a voter."""
        return peer_id in self._senders

    def peer_disconnected(self, peer_id: int) -> None:
        super().peer_disconnected(peer_id)
        self._windows[peer_id].clear()

    def _SyncObj__onBecomeLeader(self) -> None:
        for window in self._windows.values():
            window.clear()
        super()._SyncObj__onBecomeLeader()

    # Receiving.

    def _on_append_entries(self, node: Any, message: Message) -> None:
        """Take no entries while more than a few windows of them wait for this node's disk."""
        if message["entries"] and self._log.unsynced_bytes > self._unsynced_bytes_max():
            message["entries"] = []
            if self._log.term_at(message["prevLogIdx"]) is None:
                # A refusal would bring all of it again, at once. The next heartbeat asks again.
                if self._hear_leader(node, message["term"]):
                    self._hear_heartbeat(node, message["term"], commit_index=0)
                return
        super()._on_append_entries(node, message)

    def _hear_heartbeat(self, node: Any, term: int, *, commit_index: int) -> None:
        """To the engine it is a heartbeat that proves nothing: no entries, no commit index."""
        self._to_engine(
            node, {"type": wire.APPEND_ENTRIES, "term": term, "commit_index": commit_index}
        )

    def _unsynced_bytes_max(self) -> int:
        return 4 * self._limits.window_bytes_max

    # Snapshots sent.

    def _send_snapshot(self, peer_id: int) -> None:
        sender = self._senders.get(peer_id)
        if sender is None:
            opened = self._snapshots.open_current()
            if opened is None:
                return
            sender = self._senders[peer_id] = SnapshotSender(
                opened,
                chunk_bytes=self._limits.snapshot_chunk_bytes,
                resend_s=SNAPSHOT_RESEND_S,
            )
        self.tell(peer_id, sender.next_message(self.term, ENGINE_CLOCK.read()))

    def _on_snapshot_reply(self, node: Any, message: Message) -> None:
        if not self._is_answer_to_us(message):
            return
        self._SyncObj__lastResponseTime[node] = ENGINE_CLOCK.read()
        offset = message["offset"]
        if message["installed"]:
            if self._log.first_index <= offset <= self._log.last_index:
                self._SyncObj__raftMatchIndex[node] = max(
                    self._SyncObj__raftMatchIndex[node], offset
                )
                self._SyncObj__raftNextIndex[node] = max(
                    self._SyncObj__raftNextIndex[node], offset + 1
                )
                self._resend = True
            self._end_transfer(node.id)
            return
        sender = self._senders.get(node.id)
        if sender is None or (sender.snapshot.offset, sender.snapshot.epoch) != (
            offset,
            message["epoch"],
        ):
            return
        if sender.answered(message["position"]):
            self._send_snapshot(node.id)

    def _end_transfer(self, peer_id: int) -> None:
        sender = self._senders.pop(peer_id, None)
        if sender is not None:
            sender.close()

    # Snapshots received.

    def _on_install_snapshot(self, node: Any, message: Message) -> None:
        if not self._hear_leader(node, message["term"]):
            return
        self._hear_heartbeat(node, message["term"], commit_index=self._commit_of_chunk(message))
        snapshot = SnapshotId(message["offset"], message["epoch"], message["total"], message["crc"])
        if self._is_stale(snapshot):
            self._answer_snapshot(node, snapshot, installed=True)
            return

        if snapshot.size > self._limits.snapshot_bytes_max:
            self._events.snapshot_refused(node.id, snapshot.size, self._limits.snapshot_bytes_max)

        def on_stored() -> None:
            self._answer_snapshot(node, snapshot)

        self._receiver.receive(
            snapshot,
            message["position"],
            message["data"],
            on_stored=on_stored,
            on_whole=lambda whole, replace_state: self._install(node, whole, replace_state),
            on_damaged=lambda damaged: self._answer_snapshot(node, damaged),
            on_no_room=lambda failure: self._events.snapshot_found_no_room(
                node.id, snapshot.size, failure
            ),
        )

    @staticmethod
    def _commit_of_chunk(message: Message) -> int:
        return 0

    def _is_stale(self, snapshot: SnapshotId) -> bool:
        return snapshot.offset <= self.applied

    def _decode(self, snapshot: SnapshotId, data: bytes) -> Callable[[], None]:
        """On the snapshots' thread: what would replace the state, or raise why it cannot."""
        try:
            return self._state_machine.restore(snapshot.offset, snapshot.epoch, data)
        except Exception as error:
            failure = error

        def fail() -> None:
            raise failure

        return fail

    def _install(self, node: Any, snapshot: SnapshotId, replace_state: Callable[[], None]) -> None:
        """The snapshot is whole, checked and durable: it becomes our state."""
        if self.halted:
            return
        if not self._is_stale(snapshot):
            try:
                replace_state()
            except Exception as error:
                self.halt(f"the state machine refused snapshot {snapshot.offset}", error)
                return
            if self._log.term_at(snapshot.offset) == snapshot.epoch:
                self._keep_tail(snapshot)
            else:
                assert self.commit_index <= snapshot.offset, (self.commit_index, snapshot)
                self._log.reset(snapshot.offset, snapshot.epoch)
            self.snapshot = snapshot
            self._SyncObj__raftLastApplied = snapshot.offset
            self._SyncObj__raftCommitIndex = max(self.commit_index, snapshot.offset)
            self._applied_term = snapshot.epoch
            self._events.restored(snapshot.offset, snapshot.epoch)
        self._answer_snapshot(node, snapshot, installed=True)
        self._events.wake(0.0)

    def _keep_tail(self, snapshot: SnapshotId) -> None:
        """Our log agrees with the snapshot: what follows it may be acknowledged, and stays."""
        self._trim_behind(snapshot.offset)

    def _answer_snapshot(self, node: Any, snapshot: SnapshotId, *, installed: bool = False) -> None:
        self.tell(
            node.id,
            {
                "type": wire.SNAPSHOT_REPLY,
                "term": self.term,
                "offset": snapshot.offset,
                "epoch": snapshot.epoch,
                "position": self._receiver.wanted(snapshot),
                "installed": installed,
            },
        )
