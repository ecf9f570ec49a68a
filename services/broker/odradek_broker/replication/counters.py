"""What the data path counts: plain integers, read when somebody scrapes."""

from __future__ import annotations

from odradek_runtime.latencies import Latencies


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
