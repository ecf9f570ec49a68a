"""Prometheus metrics of a broker's transaction coordinators: counters, and the state of open transactions.

Counters start at 0 with this process. If a coordinator moves to another broker, its counts do not move with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from odradek_broker.transactions.messages import TransactionCompleted
from odradek_broker.transactions.transaction import EndedBy
from odradek_broker.transactions.transaction_shard import TransactionShard
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_runtime.latencies import Latencies

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX: Final = "odradek_broker_"
_CLIENT: Final = EndedBy.CLIENT.name.lower()
_FENCED: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class TransactionMetrics:
    """The transaction metrics of one broker, used only on the event loop."""

    def __init__(
        self,
        *,
        shards: Callable[[], Iterable[TransactionShard]],
        pending_markers: Callable[[], int],
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        """`now_ms` reads the monotonic clock, because the times of decisions are monotonic."""
        self._shards = shards
        self._pending_markers = pending_markers
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self.started = 0
        self.fenced = 0
        # All label values exist from the start, so that Prometheus's `rate` includes the first transaction.
        self.completed: Counter[tuple[str, str]] = Counter(
            {("commit", _CLIENT): 0, **{("abort", by.name.lower()): 0 for by in EndedBy}}
        )
        """Number of completed transactions, by outcome and by the reason for the decision (`EndedBy`)."""
        self.open_latencies = Latencies()
        self.completion_latencies = Latencies()

    def count_completed(self, report: TransactionCompleted) -> None:
        """Count a completed transaction, whose partitions all have their marker."""
        outcome = "commit" if report.is_commit else "abort"
        self.completed[outcome, report.ended_by.name.lower()] += 1
        self.open_latencies.observe(report.open_ms / 1000)
        self.completion_latencies.observe(report.decided_for_ms / 1000)

    def count_response(self, code: ErrorCode | None) -> None:
        """Count a response whose error code means that the producer is fenced. Other codes are ignored."""
        self.fenced += code in _FENCED

    def families(self) -> Iterator[Metric]:
        """Yield the metric families."""
        yield from self._totals()
        yield from self._gauges()

    def _totals(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        yield CounterMetricFamily(
            PREFIX + "transactions_started", "Transactions that began", value=self.started
        )
        completed = CounterMetricFamily(
            PREFIX + "transactions_completed",
            "Transactions that are complete, by outcome and by the reason for the decision",
            labels=["outcome", "ended_by"],
        )
        for labels, count in sorted(self.completed.items()):
            completed.add_metric(labels, count)
        yield completed
        yield CounterMetricFamily(
            PREFIX + "transactions_fenced",
            "Requests that were refused because a newer producer uses the transactional id",
            value=self.fenced,
        )
        for name, doc, latencies in (
            (
                "transaction_open_seconds",
                "Time from the start of a transaction to its decision",
                self.open_latencies,
            ),
            (
                "transaction_completion_seconds",
                "Time from the decision of a transaction to its last marker",
                self.completion_latencies,
            ),
        ):
            yield HistogramMetricFamily(
                PREFIX + name,
                doc,
                buckets=latencies.cumulative(),
                sum_value=latencies.sum_seconds,
            )

    def _gauges(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        shards = list(self._shards())
        now_ms, wall_ms = self._now_ms(), self._wall_ms()
        begun_ms = [start for shard in shards for start in shard.table.open_since_ms()]
        decided_ms = [
            oldest for shard in shards if (oldest := shard.markers_due.oldest_ms()) is not None
        ]
        gauges: tuple[tuple[str, str, Any], ...] = (
            ("transactions_open", "Transactions that are open", len(begun_ms)),
            (
                "transaction_oldest_open_seconds",
                "Age of the oldest open transaction",
                max(wall_ms - min(begun_ms), 0) / 1000 if begun_ms else 0,
            ),
            (
                "transaction_markers_pending",
                "Markers that partition leaders have not acknowledged",
                self._pending_markers(),
            ),
            (
                "transaction_oldest_marker_seconds",
                "Age of the oldest decided transaction with a pending marker",
                (now_ms - min(decided_ms)) / 1000 if decided_ms else 0,
            ),
            (
                "transaction_requests_held",
                "Requests that wait for the completion of the previous transaction",
                sum(len(shard.held) for shard in shards),
            ),
            (
                "transactional_ids",
                "Transactional ids that this broker coordinates",
                sum(len(shard.table) for shard in shards),
            ),
        )
        for name, doc, value in gauges:
            yield GaugeMetricFamily(PREFIX + name, doc, value=value)
