"""Counters of the data path: totals for the metrics, and the bytes that consumers may read."""

from __future__ import annotations

from collections import deque
from typing import Final

from odradek_broker.replication.transaction_incidents import TransactionIncidents
from odradek_protocol.identity import Offset
from odradek_runtime.latencies import Latencies

STEPS_MAX: Final = 1024
_NO_STEPS: Final[deque[tuple[Offset, int]]] = deque(maxlen=0)


class Counters:
    """Totals since the start of the process. Only the event loop writes them; a metrics scrape reads them."""

    __slots__ = (
        "append_batches",
        "append_bytes",
        "append_records",
        "fetch_bytes",
        "fetch_reads",
        "fetch_reads_cold",
        "isr_expands",
        "isr_shrinks",
        "leader_changes",
        "partition_bugs",
        "produce_errors",
        "produce_latencies",
        "produce_requests",
        "replication_bytes_in",
        "replication_bytes_out",
        "sync_latencies",
        "transaction_incidents",
        "truncations",
    )

    def __init__(self) -> None:
        self.append_batches = 0
        self.append_bytes = 0
        self.append_records = 0
        self.fetch_bytes = 0
        self.fetch_reads = 0
        self.fetch_reads_cold = 0
        self.isr_expands = 0
        self.isr_shrinks = 0
        self.leader_changes = 0
        self.partition_bugs = 0  # internal errors, each of which took a replica offline
        self.produce_errors = 0
        self.produce_requests = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.produce_latencies = Latencies()  # from the end of the checks to the outcome
        self.sync_latencies = Latencies()
        self.transaction_incidents = TransactionIncidents()
        self.truncations = 0

    def served(self) -> int:
        """Return a number that rises whenever records are appended or read."""
        return self.append_batches + self.fetch_reads + self.replication_bytes_in


class VisibleBytes:
    """Counts the bytes of one partition that became readable for consumers since the start of the process.

    `total_bytes` counts the bytes below the high watermark, `stable_bytes` those that are also below the last stable
    offset. A waiting fetch sleeps until the count for its isolation level has risen by the bytes that it still lacks.
    Either offset may stand still for hours while appends continue: the high watermark with acks=1 and too few in-sync
    replicas, the last stable offset while a transaction is open. So at most STEPS_MAX of these appends are kept apart.
    Later ones are merged into the last one, and count once the offset has reached its end.
    """

    __slots__ = (
        "_above_stable",
        "_above_watermark",
        "_appended_bytes",
        "_bytes_below_first_unstable",
        "total_bytes",
    )

    def __init__(self) -> None:
        self.total_bytes = 0
        self._appended_bytes = 0
        # For each append: its end offset, and the number of bytes appended up to there. It is created at the first
        # append, because a deque takes 760 bytes, and most partitions of a broker are idle.
        self._above_watermark = _NO_STEPS
        # The appends below the high watermark and above the last stable offset; empty unless there are transactions.
        self._above_stable = _NO_STEPS
        self._bytes_below_first_unstable = 0

    @property
    def stable_bytes(self) -> int:
        """How many bytes are below the last stable offset."""
        return self._bytes_below_first_unstable if self._above_stable else self.total_bytes

    def appended(self, end_offset: Offset, size_bytes: int) -> None:
        self._appended_bytes = appended_bytes = self._appended_bytes + size_bytes
        above = self._above_watermark
        if above is _NO_STEPS:
            above = self._above_watermark = deque()
        if above:
            _add(above, end_offset, appended_bytes)
        else:
            above.append((end_offset, appended_bytes))

    def committed(self, high_watermark: Offset) -> None:
        """Count the appends that end at or below the new high watermark. Call it only if the log has no open
        transaction.
        """
        above = self._above_watermark
        while above and above[0][0] <= high_watermark:
            self.total_bytes = above.popleft()[1]
        if self._above_stable:
            self._above_stable.clear()

    def committed_behind(self, high_watermark: Offset, last_stable_offset: Offset) -> None:
        """Count the appends that end at or below the high watermark, and for `stable_bytes` only those that also end
        at or below the last stable offset.
        """
        if self._above_stable is _NO_STEPS:
            self._above_stable = deque()
        above, unstable = self._above_watermark, self._above_stable
        while above and above[0][0] <= high_watermark:
            if not unstable:
                self._bytes_below_first_unstable = self.total_bytes
            end_offset, self.total_bytes = above.popleft()
            _add(unstable, end_offset, self.total_bytes)
        while unstable and unstable[0][0] <= last_stable_offset:
            self._bytes_below_first_unstable = unstable.popleft()[1]

    def cut(self) -> None:
        """Forget the appends above the high watermark, because the log was truncated."""
        self._above_watermark.clear()


def _add(steps: deque[tuple[Offset, int]], end_offset: Offset, total_bytes: int) -> None:
    if len(steps) < STEPS_MAX:
        steps.append((end_offset, total_bytes))
    else:
        steps[-1] = (end_offset, total_bytes)
