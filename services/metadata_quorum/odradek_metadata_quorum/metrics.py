"""The metrics of a controller process: the state of the quorum, and the state of the cluster.

All values are computed at the scrape. Gauges about the cluster are computed from the committed image, and are the same
on every controller that has caught up; only `active_controller` is 1 on the active controller and 0 on the others.
Counters begin at 0 when the process starts, so they differ between controllers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from odradek_metadata_quorum.raft.quorum import Quorum
from odradek_metadata_quorum.raft.shell import QuorumStatus
from odradek_metadata_quorum.rpc.controller_host import ControllerHost
from odradek_metadata_quorum.rpc.metadata_state_machine import ClusterEvents
from odradek_protocol.metadata.records import NO_LEADER
from odradek_runtime.tls import CertificateExpiry

PREFIX = "odradek_metadata_quorum_"


class QuorumMetrics:
    """Renders the metrics of one controller process."""

    def __init__(
        self,
        host: ControllerHost,
        quorum: Quorum,
        events: ClusterEvents,
        expiry: CertificateExpiry,
    ) -> None:
        self._host = host
        self._events = events
        self._expiry = expiry
        self._quorum = quorum
        # The registry is created at the first scrape, because importing prometheus_client would slow the start.
        self._registry: Any = None

    def render(self) -> tuple[str, bytes]:
        """Return the content type and the body of the response to a scrape."""
        import prometheus_client as prometheus

        if self._registry is None:
            self._registry = prometheus.CollectorRegistry()
            self._registry.register(self)
            prometheus.ProcessCollector(registry=self._registry)
            prometheus.GCCollector(registry=self._registry)
        return prometheus.CONTENT_TYPE_LATEST, prometheus.generate_latest(self._registry)

    def collect(self) -> Iterator[Any]:
        """Yield the metric families; prometheus_client calls this."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        status = self._quorum.status()
        yield HistogramMetricFamily(
            PREFIX + "fsync_seconds",
            "Duration of a write to the Raft log, including its fdatasync.",
            buckets=list(status.sync.buckets),
            sum_value=status.sync.total_ns / 1e9,
        )
        for name, text, value in (*_quorum_gauges(status), *self._cluster_gauges()):
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
        for name, text, total in (
            ("log_syncs", "Synced writes to the Raft log.", status.sync.count),
            (
                "log_sync_seconds",
                "Time spent in synced writes to the Raft log.",
                status.sync.total_ns / 1e9,
            ),
            ("log_synced_bytes", "Bytes written to the Raft log.", status.sync.bytes),
            (
                "snapshots_not_stored",
                "Snapshots that were not stored, because they were too large or the disk was full.",
                status.snapshots_not_stored,
            ),
            (
                "batches_committed",
                "Metadata batches that this controller proposed and that were committed.",
                self._host.batches_committed_total,
            ),
            (
                "broker_registrations",
                "Registrations of brokers, one for each start of a broker.",
                self._events.broker_registrations_total,
            ),
            ("broker_fencings", "Fencings of brokers.", self._events.broker_fencings_total),
            (
                "leader_elections",
                "Elections of partition leaders, clean and unclean.",
                self._events.leader_elections_total,
            ),
            (
                "unclean_leader_elections",
                "Unclean elections of partition leaders, which may lose records.",
                self._events.unclean_leader_elections_total,
            ),
        ):
            yield CounterMetricFamily(PREFIX + name, text, value=total)
        lag = GaugeMetricFamily(
            PREFIX + "peer_lag_entries",
            "Number of entries by which another voter is behind the leader. Only the leader reports this.",
            labels=["peer"],
        )
        for peer in status.peers if status.active else ():
            lag.add_metric([str(peer.node_id)], status.log_last_offset - peer.match_index)
        yield lag
        brokers = GaugeMetricFamily(
            PREFIX + "broker_info",
            "1 for each registered broker, with its host and rack. "
            "A broker without a host counts as a host of its own.",
            labels=["broker", "host", "rack"],
        )
        for broker in self._host.controller.committed.brokers.values():
            brokers.add_metric([str(broker.broker_id), broker.host_id or "", broker.rack or ""], 1)
        yield brokers
        yield from self._expiry.families()

    def _cluster_gauges(self) -> Iterator[tuple[str, str, float]]:
        image = self._host.controller.committed
        offline = under_replicated = under_min_isr = not_preferred = partitions = 0
        for state in image.partitions():
            partitions += 1
            offline += state.leader == NO_LEADER
            under_replicated += len(state.isr) < len(state.replicas)
            under_min_isr += len(state.isr) < image.min_insync_replicas(state)
            not_preferred += state.leader != state.replicas[0]
        yield (
            "active_controller",
            "1 on the active controller, 0 on other controllers.",
            float(self._host.controller.is_active),
        )
        fenced = sum(broker.fenced for broker in image.brokers.values())
        yield "fenced_brokers", "Registered brokers that are fenced.", float(fenced)
        yield "active_brokers", "Brokers that are not fenced.", float(len(image.brokers) - fenced)
        yield "topics", "Topics.", float(len(image.topics))
        yield "partitions", "Partitions.", float(partitions)
        yield "offline_partitions", "Partitions without a leader.", float(offline)
        yield (
            "under_replicated_partitions",
            "Partitions with at least one replica that is not in sync.",
            float(under_replicated),
        )
        yield (
            "partitions_under_min_isr",
            "Partitions with fewer in-sync replicas than min.insync.replicas, which refuse acks=all.",
            float(under_min_isr),
        )
        yield (
            "preferred_replica_imbalance",
            "Partitions whose leader is not the preferred replica.",
            float(not_preferred),
        )


def _quorum_gauges(status: QuorumStatus) -> Iterator[tuple[str, str, float]]:
    yield "raft_term", "Raft's current term.", float(status.term)
    yield (
        "raft_leader",
        "1 on the Raft leader, 0 on other controllers.",
        float(status.leader_id == status.node_id),
    )
    yield "commit_offset", "Offset of the last committed entry.", float(status.commit_index)
    yield (
        "applied_offset",
        "Offset of the last entry that this controller has applied.",
        float(status.applied),
    )
    yield (
        "log_last_offset",
        "Offset of the last entry in this controller's log.",
        float(status.log_last_offset),
    )
    yield (
        "log_start_offset",
        "Offset of the first entry in this controller's log.",
        float(status.log_start_offset),
    )
    yield "log_bytes", "Size of the entries in the Raft log.", float(status.log_bytes)
    yield (
        "snapshot_offset",
        "Offset of the last entry that the newest snapshot includes.",
        float(status.snapshot_offset),
    )
    yield "snapshot_bytes", "Size of the newest snapshot.", float(status.snapshot_bytes)
    yield "snapshot_bytes_max", "Limit of the size of a snapshot.", float(status.snapshot_bytes_max)
    yield (
        "snapshot_taken_bytes",
        "Size of the last snapshot that this controller took, whether it was stored or not.",
        float(status.snapshot_taken_bytes),
    )
    yield (
        "pending_proposals",
        "Proposals of this controller that are not applied yet.",
        float(status.pending_proposals),
    )
    yield (
        "log_sync_last_seconds",
        "Duration of the last synced write to the Raft log.",
        status.sync.last_ns / 1e9,
    )
    yield (
        "log_sync_max_seconds",
        "Longest synced write to the Raft log since the start.",
        status.sync.max_ns / 1e9,
    )
