"""The broker's Prometheus metrics, read from counters and replicas at each scrape of /metrics.

`prometheus_client` is imported at the first scrape, so that a broker starts sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from odradek_broker.cluster.heartbeat import Lease, LoopTick
from odradek_broker.log.log_directory import LogDirectory
from odradek_broker.partition.effects import Role
from odradek_broker.replication.partition_table import PartitionTable
from odradek_broker.replication.transaction_incidents import IncidentKind
from odradek_runtime.clock import boottime_ms

PREFIX = "odradek_broker_"


class BrokerMetrics:
    """Renders the broker's metrics. The functions in `extra` yield more metric families (listeners, coordinators)."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        directory: LogDirectory,
        lease: Lease,
        tick: LoopTick,
        loop_lag_seconds: Callable[[], float],
    ) -> None:
        self.extra: list[Callable[[], Iterator[Any]]] = []
        self._table = table
        self._directory = directory
        self._lease = lease
        self._tick = tick
        self._loop_lag_seconds = loop_lag_seconds
        self._registry: Any = None  # Any, because prometheus_client is imported at the first scrape

    def render(self) -> tuple[str, bytes]:
        """Return the content type and the body of the response to a scrape."""
        import prometheus_client as prometheus

        if self._registry is None:
            self._registry = prometheus.CollectorRegistry()
            self._registry.register(self)
            prometheus.ProcessCollector(registry=self._registry)
            prometheus.PlatformCollector(registry=self._registry)
            prometheus.GCCollector(registry=self._registry)
        return prometheus.CONTENT_TYPE_LATEST, prometheus.generate_latest(self._registry)

    def collect(self) -> Iterator[Any]:
        """Yield the metric families; prometheus_client calls this."""
        yield from self._totals()
        yield from self._topics()
        yield from self._gauges()
        yield from self._partitions()
        for source in self.extra:
            yield from source()

    def _totals(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        counters = self._table.counters
        for name, doc, value in (
            (
                "produce_requests",
                "Produce requests, counted per partition",
                counters.produce_requests,
            ),
            (
                "produce_errors",
                "Produce requests that failed, counted per partition",
                counters.produce_errors,
            ),
            ("records_produced", "Records appended as a leader", counters.append_records),
            ("batches_produced", "Batches appended as a leader", counters.append_batches),
            ("bytes_in", "Bytes appended as a leader", counters.append_bytes),
            ("bytes_out", "Bytes read for consumers", counters.fetch_bytes),
            ("reads", "Reads for consumers", counters.fetch_reads),
            (
                "cold_reads",
                "Reads for consumers that waited for the disk",
                counters.fetch_reads_cold,
            ),
            (
                "replication_bytes_in",
                "Bytes appended as a follower",
                counters.replication_bytes_in,
            ),
            ("replication_bytes_out", "Bytes sent to followers", counters.replication_bytes_out),
            ("isr_shrinks", "Proposals to shrink an ISR", counters.isr_shrinks),
            ("isr_expands", "Proposals to expand an ISR", counters.isr_expands),
            ("role_changes", "Changes of a replica's role", counters.leader_changes),
            ("truncations", "Truncations of a follower's log", counters.truncations),
            (
                "partition_bugs",
                "Replicas that failed on an internal error",
                counters.partition_bugs,
            ),
        ):
            yield CounterMetricFamily(PREFIX + name, doc, value=value)

        incidents = counters.transaction_incidents
        damaged = CounterMetricFamily(
            PREFIX + "transactions_damaged",
            "Transactions whose partitions have contradicting outcomes, or whose lost marker the leader replaced",
            labels=["kind"],
        )
        for kind in IncidentKind:
            damaged.add_metric([kind], incidents.counts[kind])
        yield damaged
        for name, doc, latencies in (
            (
                "produce_latency_seconds",
                "Time from the validation of a produce request to its outcome",
                counters.produce_latencies,
            ),
            ("fsync_seconds", "Duration of a sync of a log to disk", counters.sync_latencies),
        ):
            yield HistogramMetricFamily(
                PREFIX + name,
                doc,
                buckets=latencies.cumulative(),
                sum_value=latencies.sum_seconds,
            )

    def _topics(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        bytes_in = CounterMetricFamily(
            f"{PREFIX}topic_bytes_in", "Bytes appended as a leader, by topic", labels=["topic"]
        )
        bytes_out = CounterMetricFamily(
            f"{PREFIX}topic_bytes_out", "Bytes read for consumers, by topic", labels=["topic"]
        )
        for topic, traffic in self._table.counters.traffic.items():
            bytes_in.add_metric([topic], traffic.bytes_in)
            bytes_out.add_metric([topic], traffic.bytes_out)
        yield bytes_in
        yield bytes_out

    def _gauges(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        roles = dict.fromkeys(Role, 0)
        under_replicated = under_min_isr = 0
        image = self._table.image
        for host in self._table.by_id.values():
            roles[host.replica.role] += 1
            if host.is_leader:
                state = image.partition(host.partition.topic_id, host.partition.partition)
                under_min_isr += host.replica.is_under_min_isr
                under_replicated += state is not None and len(state.isr) < len(state.replicas)
        offline = sum(state.leader < 0 for state in image.partitions())
        lease_ms = max(self._lease.until_ms - boottime_ms(), 0)
        for name, doc, value in (
            ("partitions", "Replicas on this broker", sum(roles.values())),
            ("leader_partitions", "Partitions that this broker leads", roles[Role.LEADER]),
            (
                "failed_partitions",
                "Replicas that failed on a disk error or an internal error",
                roles[Role.FAILED],
            ),
            (
                "under_replicated_partitions",
                "Partitions that this broker leads and whose ISR is incomplete",
                under_replicated,
            ),
            (
                "partitions_under_min_isr",
                "Partitions that this broker leads and whose ISR is below min.insync.replicas",
                under_min_isr,
            ),
            ("offline_partitions", "Partitions of the cluster without a leader", offline),
            (
                "hanging_transactions",
                "Open transactions that no coordinator will end, and that this broker has not ended",
                self._table.counters.transaction_incidents.hanging,
            ),
            ("metadata_offset", "Offset of the metadata image", image.offset),
            ("lease_seconds", "Time until the lease ends", lease_ms / 1000),
            (
                "event_loop_age_seconds",
                "Time since the last iteration of the event loop",
                self._tick.age_ms() / 1000,
            ),
            (
                "event_loop_lag_seconds",
                "How late the event loop ran its latest timer",
                self._loop_lag_seconds(),
            ),
            ("disk_pool_pending", "Jobs that wait for a disk thread", self._table.pool.pending),
            ("log_bytes", "Size of all logs", self._directory.size_bytes),
            (
                "stray_logs",
                "Logs set aside because the metadata does not assign their partitions to this broker",
                len(self._directory.strays),
            ),
            ("stray_log_bytes", "Size of the stray logs", self._directory.strays.size_bytes),
            (
                "disk_free_bytes",
                "Free bytes on the volume of the data directory",
                self._directory.free_bytes(),
            ),
            (
                "log_directory_offline",
                "1 if the data directory is offline after a disk error",
                int(bool(self._table.offline_reason)),
            ),
            (
                "log_directory_full",
                "1 if writes are refused because the disk is full",
                int(self._directory.full is not None),
            ),
        ):
            yield GaugeMetricFamily(PREFIX + name, doc, value=value)

    def _partitions(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        labels = ["topic", "partition"]
        families = {
            "log_end": GaugeMetricFamily(
                PREFIX + "log_end_offset", "Log end offset", labels=labels
            ),
            "high": GaugeMetricFamily(PREFIX + "high_watermark", "High watermark", labels=labels),
            "start": GaugeMetricFamily(
                PREFIX + "log_start_offset", "Log start offset", labels=labels
            ),
            "size": GaugeMetricFamily(
                PREFIX + "partition_log_bytes", "Bytes of the log on disk", labels=labels
            ),
            "lag": GaugeMetricFamily(
                PREFIX + "replication_lag_records",
                "Records of a leader above the high watermark",
                labels=labels,
            ),
        }
        stable_lag = GaugeMetricFamily(
            PREFIX + "stable_lag_records",
            "Records of a leader between the last stable offset and the high watermark, because transactions are open",
            labels=labels,
        )
        for host in self._table.by_id.values():
            values = [host.topic, str(host.partition.partition)]
            replica = host.replica
            families["log_end"].add_metric(values, host.log.log_end_offset)
            families["high"].add_metric(values, replica.high_watermark)
            families["start"].add_metric(values, host.log.log_start_offset)
            families["size"].add_metric(values, host.log.size_bytes)
            if host.is_leader:
                families["lag"].add_metric(values, host.log.log_end_offset - replica.high_watermark)
                if behind := max(replica.high_watermark - host.log.last_stable_offset, 0):
                    stable_lag.add_metric(values, behind)
        yield from families.values()
        yield stable_lag
