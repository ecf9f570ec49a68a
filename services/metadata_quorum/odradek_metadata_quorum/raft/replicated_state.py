"""The state machine of this voter: it applies committed entries, takes snapshots, and installs the leader's snapshots.

- *Applying*: entries that are committed and durable are applied in order, a limited number in each step. If an entry
  cannot be applied, or entries are missing before it, the process ends, because this voter's state would differ from
  the state of other voters. The applied index is never above the durable index. So the only voter of a quorum waits for
  its own disk, and a snapshot never includes an entry that this node's log lacks.
- *Taking snapshots*: after a number of entries or bytes, the state is captured on the event loop, and is encoded and
  written on the disk queue for snapshots. Then the log is trimmed, except for entries that slow followers may still
  need. A snapshot that is larger than other voters accept, or for which the disk has no space, is not stored. The voter
  then keeps its log, and takes the next snapshot after the same number of entries.
- *Installing the leader's snapshot*: the snapshot is decoded on the thread for snapshots, and replaces the state on the
  event loop. If the log has the snapshot's last entry, the entries after it stay in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from odradek_metadata_quorum.errors import CorruptStorage
from odradek_metadata_quorum.raft.engine import COMMAND_NO_OP, COMMAND_REGULAR, Engine
from odradek_metadata_quorum.raft.shell import RaftEvents, RaftLimits, StateMachine
from odradek_metadata_quorum.storage.disk import DiskQueue
from odradek_metadata_quorum.storage.log_recovery import Entry
from odradek_metadata_quorum.storage.snapshot_store import (
    SnapshotId,
    SnapshotNotWritten,
    SnapshotStore,
)
from odradek_metadata_quorum.storage.write_ahead_log import GENESIS_INDEX, WriteAheadLog

# The most entries that are applied in one step, so that other work can run between two steps.
APPLY_ENTRIES_MAX: Final = 1_000
# The most bytes of entries that are applied in one step, not counting the last entry. So many bytes take about 50 ms.
APPLY_BYTES_MAX: Final = 256 << 10


class ReplicatedState:
    """Applies entries to the state machine, takes and installs snapshots, and trims the log."""

    def __init__(
        self,
        engine: Engine,
        *,
        state_machine: StateMachine,
        snapshots: SnapshotStore,
        log_queue: DiskQueue,
        snapshot_queue: DiskQueue,
        limits: RaftLimits,
        events: RaftEvents,
        loaded: tuple[int, int],
    ) -> None:
        """`loaded` is the result of `load`."""
        self._engine = engine
        self._log = engine.log
        self._state_machine = state_machine
        self._snapshots = snapshots
        self._log_queue = log_queue
        self._snapshot_queue = snapshot_queue
        self._limits = limits
        self._events = events
        self._is_taking = False
        self._tried_at = 0
        self._bytes_since_snapshot = 0
        offset, self._applied_term = loaded
        self.snapshot = snapshots.current
        engine.restored(offset)

    @staticmethod
    def load(
        state_machine: StateMachine, snapshots: SnapshotStore, log: WriteAheadLog
    ) -> tuple[int, int]:
        """Restore the newest snapshot, and make the log continue from it. Return (index, term) of the snapshot's last
        entry, or of the genesis entry if there is no snapshot.

        This must run before the engine is created, so that the node knows everything on its disk before it votes.
        Raises `CorruptStorage`.
        """
        data = snapshots.read_current()
        snapshot = snapshots.current
        if data is None or snapshot is None:
            if log.first_index != GENESIS_INDEX:
                raise CorruptStorage(
                    f"the log starts after entry {log.first_index}, but no snapshot includes"
                    " the earlier entries"
                )
            return GENESIS_INDEX, 0
        if snapshot.offset < log.first_index:
            raise CorruptStorage(
                f"entries are missing: the snapshot ends at entry {snapshot.offset}, but the log"
                f" starts after entry {log.first_index}"
            )
        state_machine.restore(snapshot.offset, snapshot.epoch, data)()
        if log.term_at(snapshot.offset) != snapshot.epoch:
            # The process crashed between installing the snapshot and resetting the log, so the log is reset now.
            log.reset(snapshot.offset, snapshot.epoch)
        return snapshot.offset, snapshot.epoch

    def entries(self, from_index: int, count_max: int) -> Sequence[Entry] | None:
        """Return at most `count_max` applied entries from `from_index` on. Return None if the log no
        longer has them.
        """
        first = self._log.first_index
        if from_index <= first:
            if first != GENESIS_INDEX:
                return None
            from_index = first + 1
        start = from_index - first
        return self._log.entries[start : min(start + count_max, self._engine.applied - first + 1)]

    # Applying.

    def apply_committed(self) -> None:
        """Apply the next entries that are committed and durable, up to the limits of one step."""
        engine = self._engine
        applied = engine.applied
        end = min(engine.commit_index, self._log.synced_index, applied + APPLY_ENTRIES_MAX)
        if end > applied:
            self._apply(applied, end)

    def _apply(self, applied: int, end: int) -> None:
        engine, first = self._engine, self._log.first_index
        if applied < first:
            engine.halt(
                f"entry {applied + 1} is missing, because the log starts after entry {first}"
            )
            return
        applied_bytes = 0
        for command, index, term in self._log.entries[applied + 1 - first : end + 1 - first]:
            if index != applied + 1:
                engine.halt(f"entry {applied + 1} is missing; the next entry in the log is {index}")
                return
            if command[:1] == COMMAND_REGULAR:
                try:
                    self._state_machine.apply(index, term, command[1:])
                except Exception as error:
                    self._apply_failed(index, error)
                    return
            elif command[:1] != COMMAND_NO_OP:
                engine.halt(
                    f"entry {index} has the unknown kind {command[0]}, so a newer program wrote it: start this"
                    " controller with that program"
                )
                return
            applied = engine.applied = index
            self._applied_term = term
            applied_bytes += len(command)
            self._bytes_since_snapshot += len(command)
            self._events.applied(index, term)
            if applied_bytes >= APPLY_BYTES_MAX:
                end = index
                break
        if applied != end:
            engine.halt(f"entries up to {end} are committed, but the log ends at entry {applied}")
            return
        if min(engine.commit_index, self._log.synced_index) > end:
            self._events.wake(0.0)
        self._take_snapshot_if_due()

    def _apply_failed(self, index: int, error: Exception) -> None:
        self._engine.halt(f"the state machine failed on entry {index}", error)

    # Taking snapshots.

    def _take_snapshot_if_due(self) -> None:
        taken_at = self.snapshot.offset if self.snapshot is not None else GENESIS_INDEX
        taken_at = max(taken_at, self._tried_at)
        offset, epoch = self._engine.applied, self._applied_term
        if self._is_taking or (
            offset - taken_at < self._limits.snapshot_interval_entries
            and self._bytes_since_snapshot < self._limits.snapshot_interval_bytes
        ):
            return
        self._is_taking = True
        self._bytes_since_snapshot = 0
        self._tried_at = offset
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
        """Return whether a snapshot of this size is stored. Other voters would refuse a larger one."""
        return size <= size_max

    def _snapshot_written(self, written: tuple[int, SnapshotId | OSError | None]) -> None:
        size, snapshot = written
        self._is_taking = False
        if self._engine.halted:
            return
        failure = snapshot if isinstance(snapshot, OSError) else None
        self._events.snapshot_weighed(size, self._limits.snapshot_bytes_max, failure)
        if snapshot is None or isinstance(snapshot, OSError):
            return
        if self.snapshot is None or snapshot.offset > self.snapshot.offset:
            self.snapshot = snapshot
        self._trim_behind(snapshot.offset)

    def _trim_behind(self, offset: int) -> None:
        """Remove entries up to `offset` from the log, because a snapshot includes them. Entries that slow followers may
        still need stay.
        """
        first, entries = self._log.first_index, self._log.entries
        index = max(first, offset - self._limits.snapshot_entries_min)
        kept_bytes = sum(len(entry[0]) for entry in entries[index - first : offset - first])
        while index < offset and kept_bytes > self._limits.snapshot_entries_bytes_max:
            kept_bytes -= len(entries[index - first][0])
            index += 1
        if index > first:
            self._log.trim_to(index)
            self._log_queue.submit(lambda: self._log.remove_before(index), lambda _: None)

    # Installing the leader's snapshot.

    def is_stale(self, snapshot: SnapshotId) -> bool:
        """Return whether this node has already applied all entries that a snapshot includes."""
        return snapshot.offset <= self._engine.applied

    def decode(self, snapshot: SnapshotId, data: bytes) -> Callable[[], None]:
        """Decode a snapshot. This runs on the thread for snapshots.

        Return a function that replaces the state or, if decoding failed, raises the exception. The caller must call the
        function on the event loop.
        """
        try:
            return self._state_machine.restore(snapshot.offset, snapshot.epoch, data)
        except Exception as error:
            failure = error

        def fail() -> None:
            raise failure

        return fail

    def install(self, snapshot: SnapshotId, replace_state: Callable[[], None]) -> None:
        """Replace this node's state by a leader's snapshot that is complete, checked and durable.

        `replace_state` is the result of `decode`.
        """
        engine = self._engine
        try:
            replace_state()
        except Exception as error:
            engine.halt(
                f"the state machine failed to load the snapshot at entry {snapshot.offset}", error
            )
            return
        if self._log.term_at(snapshot.offset) == snapshot.epoch:
            self._keep_tail(snapshot)
        else:
            assert engine.commit_index <= snapshot.offset, (engine.commit_index, snapshot)
            self._log.reset(snapshot.offset, snapshot.epoch)
        self.snapshot = snapshot
        engine.restored(snapshot.offset)
        self._applied_term = snapshot.epoch
        self._events.restored(snapshot.offset, snapshot.epoch)

    def _keep_tail(self, snapshot: SnapshotId) -> None:
        """Trim the log, but keep the entries after the snapshot, because this node may have acknowledged them."""
        self._trim_behind(snapshot.offset)
