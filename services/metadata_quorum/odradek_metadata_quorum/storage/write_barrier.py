"""The write barrier tracks which changes of term, vote and log are on disk. No message reports a change before it is on
disk.

The engine changes term, vote and log in memory and continues. At most one disk write is in progress. It includes all
changes that were recorded before it started: the vote, then the log as one frame with one sync. The next write starts
when the previous one ends, without a timer (group commit).

Writes are numbered. `noted` is the number of the write that will include the latest change, and `durable` is the number
of the last completed write. When a message is created, `needed_for_vote` and `needed_for_index` return the number that
`durable` must reach before the message may be sent. So votes and acknowledgements are never sent before they are on
disk, many changes at once need only one sync, and a message that reports no new state does not wait, however slow the
disk is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from odradek_metadata_quorum.storage.disk import DiskQueue
from odradek_metadata_quorum.storage.vote_file import VoteFile
from odradek_metadata_quorum.storage.write_ahead_log import LogWrite, WriteAheadLog
from odradek_runtime.latencies import Latencies


@dataclass(slots=True)
class SyncLatency:
    """The number, durations and sizes of the writes to the log since the start."""

    count: int = 0
    total_ns: int = 0
    last_ns: int = 0
    max_ns: int = 0
    entries: int = 0
    bytes: int = 0
    latencies: Latencies = field(default_factory=Latencies)


class WriteBarrier:
    """Owns the log and the vote file. Call its methods only on the event loop; disk writes run on `queue`.

    `on_durable` is called on the event loop after each write.
    """

    def __init__(
        self,
        log: WriteAheadLog,
        vote_file: VoteFile,
        queue: DiskQueue,
        *,
        on_durable: Callable[[], None],
    ) -> None:
        self.log = log
        self.latency = SyncLatency()
        self.term = vote_file.term
        self.vote = vote_file.vote
        self._vote_file = vote_file
        self._queue = queue
        self._on_durable = on_durable
        self._vote_noted = False
        self._vote_in_flight = False
        self._changes = 0
        self.durable = 0
        self._writing: int | None = None  # the number of the write in progress
        self._write_started_ns = 0

    @property
    def noted(self) -> int:
        """The number of the write that includes, or will include, the latest change."""
        return self._changes + (1 if self.log.dirty or self._vote_noted else 0)

    @property
    def is_vote_durable(self) -> bool:
        """Whether the present term and vote are on disk."""
        return not self._vote_noted and not self._vote_in_flight

    def needed_for_vote(self) -> int:
        """Return the value that `durable` must reach for the present term and vote to be on disk."""
        if self._vote_noted:
            return self.noted
        return self._writing or 0 if self._vote_in_flight else 0

    def needed_for_index(self, index: int) -> int:
        """Return the value of `durable` from which on all entries that the log now has up to `index` are on disk.

        It is 0 for an index up to the boundary of the log, because those entries are in a snapshot on disk.
        """
        if index <= max(self.log.synced_index, self.log.first_index):
            return 0
        if self._writing is not None and index <= self.log.in_flight_index:
            return self._writing
        return self.noted

    @property
    def clean(self) -> bool:
        """Whether all recorded changes are durable."""
        return self.durable == self.noted

    @property
    def waited_ns(self) -> int:
        """The nanoseconds since the write in progress started; 0 if there is none."""
        if self._writing is None:
            return 0
        return time.perf_counter_ns() - self._write_started_ns

    def note_vote(self, term: int, vote: int | None) -> None:
        """Change term and vote in memory. The next write makes them durable."""
        self.term, self.vote = term, vote
        self._vote_noted = True

    def start_write(self) -> None:
        """Start a write if there are recorded changes and no write is in progress."""
        if self._writing is not None or not (self.log.dirty or self._vote_noted):
            return
        vote = (self.term, self.vote) if self._vote_noted else None
        write = self.log.take() if self.log.dirty else None
        self._changes += 1
        self._vote_noted, self._vote_in_flight = False, self._vote_noted
        self._writing = self._changes
        self._write_started_ns = time.perf_counter_ns()
        self._queue.submit(lambda: self._write(vote, write), self._written)

    def _write(
        self, vote: tuple[int, int | None] | None, write: LogWrite | None
    ) -> tuple[LogWrite | None, int, int]:
        """Write the vote and the log to the disk. This runs on the disk thread.

        The vote is written first, so that no entry in the log has a higher term than the vote file.
        """
        start_ns = time.perf_counter_ns()
        if vote is not None:
            self._vote_file.save(*vote)
        written_bytes = self.log.write(write) if write is not None else 0
        return write, written_bytes, time.perf_counter_ns() - start_ns

    def _written(self, result: tuple[LogWrite | None, int, int]) -> None:
        write, written_bytes, duration_ns = result
        assert self._writing is not None
        if write is not None:
            self.log.written()
            self._record(write.entry_count, written_bytes, duration_ns)
        self._vote_in_flight = False
        self.durable, self._writing = self._writing, None
        self.start_write()
        self._on_durable()

    def _record(self, entries: int, written_bytes: int, duration_ns: int) -> None:
        latency = self.latency
        latency.count += 1
        latency.total_ns += duration_ns
        latency.last_ns = duration_ns
        latency.max_ns = max(latency.max_ns, duration_ns)
        latency.entries += entries
        latency.bytes += written_bytes
        latency.latencies.observe(duration_ns / 1e9)
