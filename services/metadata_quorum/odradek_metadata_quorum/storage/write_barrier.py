"""The write barrier: it holds a message back until the state that the message reports is on disk.

The engine changes term, vote and log in memory, at once, and goes on. Every change moves `noted`. At most one disk
write is under way; it takes everything noted so far, the vote first, as one frame and one sync (group commit: the
next starts when the last ends, without a timer). When it returns, `durable` catches up. Each change has the number of
the write that includes it. The state that a message reports is on disk once `durable` reaches the number that
`needed_for_vote` or `needed_for_index` returned when the message was made. Votes and acknowledgements thus never
leave before the disk has them, a burst costs one sync, and a message that reports no new state waits for no write at
all, however slow the disk is.
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
    """Measures the durations of the log's writes since the start."""

    count: int = 0
    total_ns: int = 0
    last_ns: int = 0
    max_ns: int = 0
    entries: int = 0
    bytes: int = 0
    latencies: Latencies = field(default_factory=Latencies)


class WriteBarrier:
    """Owns the durable log and vote. Its methods run on the event loop, and its writes on `queue`."""

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
        self._writing: int | None = None  # the value of `durable` after the write returns
        self._write_started_ns = 0

    @property
    def noted(self) -> int:
        """The number of changes so far. All changes that no write includes yet count as one."""
        return self._changes + (1 if self.log.dirty or self._vote_noted else 0)

    @property
    def is_vote_durable(self) -> bool:
        """Whether the present term and vote are on disk."""
        return not self._vote_noted and not self._vote_in_flight

    def needed_for_vote(self) -> int:
        """Return the value of `durable` at which the present term and vote are on disk."""
        if self._vote_noted:
            return self.noted
        return self._writing or 0 if self._vote_in_flight else 0

    def needed_for_index(self, index: int) -> int:
        """Return the value of `durable` at which the present entries of the log up to `index` are on disk.

        A durable snapshot covers the entries up to the boundary of the log.
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
        """For how many nanoseconds the present write has been in progress; 0 if there is none."""
        if self._writing is None:
            return 0
        return time.perf_counter_ns() - self._write_started_ns

    def note_vote(self, term: int, vote: int | None) -> None:
        """Change term and vote. They are durable after the next write."""
        self.term, self.vote = term, vote
        self._vote_noted = True

    def start_write(self) -> None:
        """Start a write if there are changes to write, and no write is in progress."""
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
        """Write to the disk. This runs on the disk's thread.

        The vote is written first, so that no entry has a term that is not in the vote file.
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
