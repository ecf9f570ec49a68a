"""What a scrape of /metrics finds: read from counters and replicas at that moment.

`prometheus_client` is imported at the first scrape: a broker starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from odradek_broker.cluster.heartbeat import LoopTick
from odradek_broker.cluster.lease import Lease
from odradek_broker.log.log_directory import LogDirectory
from odradek_broker.partition.effects import Role
from odradek_broker.replication.partition_table import PartitionTable
from odradek_runtime.clock import boottime_ms

PREFIX = "odradek_broker_"


class BrokerMetrics:
    """Renders the broker's metrics; `extra` yields more families (listeners, coordinators)."""

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
        self._registry: Any = None  # prometheus_client is imported late

    def render(self) -> tuple[str, bytes]:
        """(content type, body) of a scrape."""
        import prometheus_client as prometheus

        if self._registry is None:
            self._registry = prometheus.CollectorRegistry()
            self._registry.register(self)
            prometheus.ProcessCollector(registry=self._registry)
            prometheus.PlatformCollector(registry=self._registry)
            prometheus.GCCollector(registry=self._registry)
        return prometheus.CONTENT_TYPE_LATEST, prometheus.generate_latest(self._registry)

    def collect(self) -> Iterator[Any]:
        """The families, for prometheus_client."""
        yield from self._totals()
        yield from self._gauges()
        yield from self._partitions()
        for source in self.extra:
            yield from source()

    def _totals(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        counters = self._table.counters
        for name, doc, value in (
            ("produce_requests", "Produce requests per partition", counters.produce_requests),
            ("produce_errors", "Produce requests that failed", counters.produce_errors),
            ("records_produced", "Records appended as a leader", counters.append_records),
            ("batches_produced", "Batches appended as a leader", counters.append_batches),
            ("bytes_in", "Bytes appended as a leader", counters.append_bytes),
            ("bytes_out", "Bytes read for consumers", counters.fetch_bytes),
            ("reads", "Reads for consumers", counters.fetch_reads),
            ("cold_reads", "Reads that waited for the disk", counters.fetch_reads_cold),
            (
                "replication_bytes_in",
                "Bytes appended as a follower",
                counters.replication_bytes_in,
            ),
            ("replication_bytes_out", "Bytes sent to followers", counters.replication_bytes_out),
            ("isr_shrinks", "Proposals to shrink an ISR", counters.isr_shrinks),
            ("isr_expands", "Proposals to expand an ISR", counters.isr_expands),
            ("role_changes", "Changes of a replica's role", counters.leader_changes),
            ("truncations", "Logs cut at their leader's word", counters.truncations),
            ("partition_bugs", "Bugs, each of which ended a replica", counters.partition_bugs),
        ):
            yield CounterMetricFamily(PREFIX + name, doc, value=value)

        for name, doc, latencies in (
            ("produce_latency_seconds", "From check to outcome", counters.produce_latencies),
            ("fsync_seconds", "Syncs of a log", counters.sync_latencies),
        ):
            yield HistogramMetricFamily(
                PREFIX + name,
                doc,
                buckets=latencies.cumulative(),
                sum_value=latencies.sum_seconds,
            )

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
            ("failed_partitions", "Replicas that a failed disk or a bug ended", roles[Role.FAILED]),
            ("under_replicated_partitions", "Led here, ISR incomplete", under_replicated),
            ("partitions_under_min_isr", "Led here, ISR below the minimum", under_min_isr),
            ("offline_partitions", "Partitions of the cluster without a leader", offline),
            ("metadata_offset", "Offset of the metadata image", image.offset),
            ("lease_seconds", "What is left of the lease", lease_ms / 1000),
            ("event_loop_age_seconds", "Age of the loop's last turn", self._tick.age_ms() / 1000),
            ("event_loop_lag_seconds", "Latest lateness of a timer", self._loop_lag_seconds()),
            ("disk_pool_pending", "Jobs waiting for the disk", self._table.pool.pending),
            ("log_bytes", "Size of all logs", self._directory.size_bytes),
            ("stray_logs", "Logs that nobody claims, put aside", len(self._directory.strays)),
            ("stray_log_bytes", "Size of these logs", self._directory.strays.size_bytes),
            ("disk_free_bytes", "Free space of the directory", self._directory.free_bytes()),
            ("log_directory_offline", "1: a disk error", int(bool(self._table.offline_reason))),
            ("log_directory_full", "1: no room to write", int(self._directory.full is not None)),
        ):
            yield GaugeMetricFamily(PREFIX + name, doc, value=value)

    def _partitions(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        labels = ["topic", "partition"]
        families = {
            "log_end": GaugeMetricFamily(PREFIX + "log_end_offset", "Log end", labels=labels),
            "high": GaugeMetricFamily(PREFIX + "high_watermark", "High watermark", labels=labels),
            "start": GaugeMetricFamily(PREFIX + "log_start_offset", "Log start", labels=labels),
            "size": GaugeMetricFamily(PREFIX + "partition_log_bytes", "Log size", labels=labels),
            "lag": GaugeMetricFamily(
                PREFIX + "replication_lag_records",
                "At a leader: records above the high watermark",
                labels=labels,
            ),
        }
        for host in self._table.by_id.values():
            values = [host.topic, str(host.partition.partition)]
            replica = host.replica
            families["log_end"].add_metric(values, host.log.log_end_offset)
            families["high"].add_metric(values, replica.high_watermark)
            families["start"].add_metric(values, host.log.log_start_offset)
            families["size"].add_metric(values, host.log.size_bytes)
            if host.is_leader:
                families["lag"].add_metric(values, host.log.log_end_offset - replica.high_watermark)
        yield from families.values()
