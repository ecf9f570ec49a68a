"""Counters of the produce, fetch and replication paths: totals for the metrics, and the bytes that
consumers may read.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Self
from weakref import WeakValueDictionary

from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.replication.transaction_incidents import TransactionIncidents
from odradek_protocol.identity import Offset, TopicName
from odradek_runtime.latencies import Latencies

STEPS_MAX: Final = 1024
TOPICS_MAX: Final = 1000
OTHER_TOPICS: Final = "(others)"
"""The label of the topics beyond the first TOPICS_MAX. It cannot be the name of a topic."""
_NO_STEPS: Final[deque[tuple[Offset, int]]] = deque(maxlen=0)


class TopicTraffic:
    """The bytes of one topic that this broker has appended as a leader, and has read for consumers."""

    __slots__ = ("__weakref__", "bytes_in", "bytes_out")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0


class Traffic:
    """The traffic by topic. The replicas of a topic share one TopicTraffic, which is deleted with the last of these
    replicas.

    At most TOPICS_MAX topics are counted separately, so that the metrics stay small; the others share one TopicTraffic.
    """

    def __init__(self) -> None:
        self._by_topic: WeakValueDictionary[str, TopicTraffic] = WeakValueDictionary()
        self._others = TopicTraffic()

    def of(self, topic: TopicName) -> TopicTraffic:
        """Return the traffic of a topic, for a replica to keep."""
        traffic = self._by_topic.get(topic)
        if traffic is None:
            if len(self._by_topic) >= TOPICS_MAX:
                return self._others
            traffic = self._by_topic[topic] = TopicTraffic()
        return traffic

    def items(self) -> list[tuple[str, TopicTraffic]]:
        """Return the traffic by topic. OTHER_TOPICS, the sum of the others, is included if it is not zero."""
        others = self._others
        more = [(OTHER_TOPICS, others)] if others.bytes_in or others.bytes_out else []
        return [*self._by_topic.items(), *more]


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
        "traffic",
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
        self.produce_latencies = Latencies()  # from the end of a produce's checks to its outcome
        self.sync_latencies = Latencies()
        self.traffic = Traffic()
        self.transaction_incidents = TransactionIncidents()
        self.truncations = 0

    def served(self) -> int:
        """Return a number that rises whenever records are appended or read."""
        return self.append_batches + self.fetch_reads + self.replication_bytes_in


class VisibleBytes:
    """Counts the bytes of one partition that become readable for consumers. Only differences of a count have a meaning.

    `total_bytes` counts the bytes below the high watermark, `stable_bytes` those that are also below the last stable
    offset. A waiting fetch sleeps until the count for its isolation level has risen by the bytes that it still lacks.
    So a count must rise whenever the high watermark (or the last stable offset) passes a record, even a record that was
    in the log before the process started and whose size is unknown.
    """

    __slots__ = ("_above_stable", "_above_watermark", "_appended_bytes")

    def __init__(
        self,
        *,
        last_stable_offset: Offset,
        high_watermark: Offset,
        log_end: Offset,
        log_bytes: int,
    ) -> None:
        """Records that are in the log above the last stable offset, or above the high watermark, are counted later.

        Their sizes are unknown, and each of the two parts is counted as if it were as large as the log: a fetch that
        wakes too early only reads again, but one that wakes too late delays records.
        """
        self._appended_bytes = 0
        # The steps of `stable_bytes`; None while the last stable offset equals the high watermark.
        self._above_stable: _Steps | None = None
        if last_stable_offset < high_watermark:
            self._above_stable = _Steps(last_stable_offset)
            self._appended_bytes = max(log_bytes, high_watermark - last_stable_offset)
            self._above_stable.add(high_watermark, self._appended_bytes)
        self._above_watermark = _Steps(high_watermark, self._appended_bytes)
        if high_watermark < log_end:
            self.appended(log_end, max(log_bytes, log_end - high_watermark))

    @classmethod
    def of(cls, log: PartitionLog) -> Self:
        """Return a count that starts at the present offsets of a log that was just opened."""
        return cls(
            last_stable_offset=log.last_stable_offset,
            high_watermark=log.high_watermark,
            log_end=log.log_end_offset,
            log_bytes=log.size_bytes,
        )

    @property
    def total_bytes(self) -> int:
        """The number of bytes that were appended and are below the high watermark now."""
        return self._above_watermark.passed_bytes

    @property
    def stable_bytes(self) -> int:
        """The number of bytes that were appended and are below the last stable offset now."""
        return (self._above_stable or self._above_watermark).passed_bytes

    def appended(self, end_offset: Offset, size_bytes: int) -> None:
        self._appended_bytes = appended_bytes = self._appended_bytes + size_bytes
        self._above_watermark.add(end_offset, appended_bytes)

    def committed(self, high_watermark: Offset) -> None:
        """Count the appends below the new high watermark, which must also be the last stable offset."""
        self._above_watermark.pass_to(high_watermark)
        self._above_stable = None

    def committed_behind(self, high_watermark: Offset, last_stable_offset: Offset) -> None:
        """Count the appends below the high watermark; in `stable_bytes`, count only those that are also below the last
        stable offset.
        """
        watermark = self._above_watermark
        stable = self._above_stable
        if stable is None:
            stable = self._above_stable = _Steps(watermark.passed_to, watermark.passed_bytes)
        watermark.pass_to(high_watermark, stable)
        stable.pass_to(last_stable_offset)

    def cut(self, end_offset: Offset) -> None:
        """Remove the appends above `end_offset`, because the log was truncated to this offset or reset to it."""
        self._above_watermark.cut(end_offset)


class _Steps:
    """Counts the bytes that a rising offset of a log has passed, and stores the appends above this offset (steps).

    The offset may not move for hours while appends continue: the high watermark with acks=1 and too few in-sync
    replicas, the last stable offset while a transaction is open. So at most STEPS_MAX steps are stored, and later
    appends are merged into the last step. While the offset is inside of a step, the bytes of the step are counted in
    proportion.
    """

    __slots__ = ("_steps", "passed_bytes", "passed_to")

    def __init__(self, passed_to: Offset, passed_bytes: int = 0) -> None:
        self.passed_to = passed_to
        self.passed_bytes = passed_bytes
        # For each append: its end offset, and the number of bytes appended up to its end. The deque is created at the
        # first append, because it takes 760 bytes, and most partitions of a broker are idle.
        self._steps = _NO_STEPS

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, end_offset: Offset, total_bytes: int) -> None:
        """Add an append that ends at `end_offset`. `total_bytes` are the bytes of all appends up to this one."""
        steps = self._steps
        if steps is _NO_STEPS:
            steps = self._steps = deque()
        if len(steps) < STEPS_MAX:
            steps.append((end_offset, total_bytes))
        else:
            steps[-1] = (end_offset, total_bytes)

    def pass_to(self, offset: Offset, then: _Steps | None = None) -> None:
        """Count the bytes below `offset`, and add the steps that were passed to `then`."""
        steps = self._steps
        while steps and steps[0][0] <= offset:
            self.passed_to, self.passed_bytes = steps.popleft()
            if then is not None:
                then.add(self.passed_to, self.passed_bytes)
        if steps and offset > self.passed_to:
            self.passed_bytes = self._bytes_at(offset, steps[0])
            self.passed_to = offset
            if then is not None:
                then.add(offset, self.passed_bytes)

    def cut(self, end_offset: Offset) -> None:
        """Remove the steps (appends) above `end_offset`."""
        steps = self._steps
        last = None
        while steps and steps[-1][0] > end_offset:
            last = steps.pop()
        if last is not None and end_offset > (steps[-1][0] if steps else self.passed_to):
            steps.append((end_offset, last[1]))
        self.passed_to = min(self.passed_to, end_offset)

    def _bytes_at(self, offset: Offset, step: tuple[Offset, int]) -> int:
        """Return the count at an offset inside of the first step; it is at least one more than the present count."""
        end_offset, total_bytes = step
        share = (offset - self.passed_to) / (end_offset - self.passed_to)
        return self.passed_bytes + max(1, int((total_bytes - self.passed_bytes) * share))
