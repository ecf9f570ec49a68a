"""What the data path counts: plain integers, read when somebody scrapes."""

from __future__ import annotations

from collections import deque
from typing import Final

from odradek_protocol.identity import Offset
from odradek_runtime.latencies import Latencies

STEPS_MAX: Final = 1024


class Counters:
    """Totals since the start of the process; only the event loop writes them."""

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
        self.partition_bugs = 0  # each of them ended a replica
        self.produce_errors = 0
        self.produce_requests = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.produce_latencies = Latencies()  # from the check to the outcome
        self.sync_latencies = Latencies()
        self.truncations = 0

    def served(self) -> int:
        """Rises whenever something is appended or read."""
        return self.append_batches + self.fetch_reads + self.replication_bytes_in


class VisibleBytes:
    """Counts appends until they are below the high watermark, in this process's life.

    While the watermark stands still (too few replicas in sync, with acks=1) appends may go on for
    hours: from STEPS_MAX on all of them count as one, which is seen when its end is.
    """

    __slots__ = ("_above_watermark", "_appended_bytes", "total_bytes")

    def __init__(self) -> None:
        self.total_bytes = 0
        self._appended_bytes = 0
        self._above_watermark: deque[tuple[Offset, int]] = deque()  # (end, appended bytes then)

    def appended(self, end_offset: Offset, size_bytes: int) -> None:
        self._appended_bytes += size_bytes
        above = self._above_watermark
        if len(above) < STEPS_MAX:
            above.append((end_offset, self._appended_bytes))
        else:
            above[-1] = (end_offset, self._appended_bytes)

    def committed(self, high_watermark: Offset) -> None:
        """All that ends at or below it can be seen now."""
        above = self._above_watermark
        while above and above[0][0] <= high_watermark:
            self.total_bytes = above.popleft()[1]

    def cut(self) -> None:
        """What was above the watermark is gone, or will be counted anew."""
        self._above_watermark.clear()
