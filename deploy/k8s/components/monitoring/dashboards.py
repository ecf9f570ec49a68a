"""Grafana dashboards. Each panel is declared by a title, PromQL expressions and a unit; `document` makes Grafana's JSON
from these declarations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alerts import BROKER, QUORUM, of_active

WIDTH = 24
PROCESSES = '{job=~"quorum|broker|gateway"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A Grafana panel. Each of `lines` is a PromQL expression and a legend. A panel of kind `stat` shows only the last
    value.
    """

    title: str
    lines: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A Grafana dashboard: rows of panels. Each row has a title."""

    uid: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def stat(title: str, expr: str, unit: str = "short") -> Panel:
    return Panel(title=title, lines=((expr, ""),), unit=unit, kind="stat", width=3)


def rate(title: str, metric: str, by: str, unit: str = "cps") -> Panel:
    expr = f"sum by ({by}) (rate({metric}[$__rate_interval]))"
    return Panel(title=title, lines=((expr, f"{{{{{by}}}}}"),), unit=unit)


def quantiles(title: str, metric: str, by: str) -> Panel:
    lines = tuple(
        (
            f"histogram_quantile({q}, sum by (le, {by}) (rate({metric}_bucket[$__rate_interval])))",
            f"p{q * 100:g} {{{{{by}}}}}",
        )
        for q in (0.5, 0.99)
    )
    return Panel(title=title, lines=lines, unit="s")


def gauge(title: str, expr: str, legend: str, unit: str = "short") -> Panel:
    return Panel(title=title, lines=((expr, legend),), unit=unit)


def once_of_gateways(by: str, expr: str) -> str:
    """Return an expression that sums a metric over partitions. Every gateway exports the same values, so each partition
    is counted only once.
    """
    return f"sum by ({by}) (max by ({by}, partition) ({expr}))"


CLUSTER = Dashboard(
    uid="odradek-cluster",
    title="Odradek / Cluster",
    rows=(
        (
            "Health",
            (
                stat("Brokers Online", of_active("active_brokers")),
                stat("Active Controllers", f"sum({QUORUM}active_controller)"),
                stat("Partitions", of_active("partitions")),
                stat("Offline Partitions", of_active("offline_partitions")),
                stat("Under Replicated Partitions", of_active("under_replicated_partitions")),
                stat("Under Min ISR Partitions", of_active("partitions_under_min_isr")),
                stat(
                    "Unclean Leader Elections",
                    f"sum(increase({QUORUM}unclean_leader_elections_total[$__range]))",
                ),
                stat("Preferred Replica Imbalance", of_active("preferred_replica_imbalance")),
            ),
        ),
        (
            "Traffic",
            (
                rate("Messages In", f"{BROKER}records_produced_total", "instance"),
                rate("Bytes In", f"{BROKER}bytes_in_total", "instance", "Bps"),
                rate("Bytes Out", f"{BROKER}bytes_out_total", "instance", "Bps"),
                rate("Produce Requests", f"{BROKER}produce_requests_total", "instance"),
                rate("Failed Produce Requests", f"{BROKER}produce_errors_total", "instance"),
                rate("Kafka Requests", f"{BROKER}kafka_requests_total", "request"),
                quantiles("Produce Latency", f"{BROKER}produce_latency_seconds", "instance"),
                rate(
                    "Replication Bytes In", f"{BROKER}replication_bytes_in_total", "instance", "Bps"
                ),
                gauge("Connections", f"{BROKER}kafka_connections", "{{instance}}"),
                rate("Bytes In by Topic", f"{BROKER}topic_bytes_in_total", "topic", "Bps"),
                rate("Bytes Out by Topic", f"{BROKER}topic_bytes_out_total", "topic", "Bps"),
                rate("gRPC Calls", f"{BROKER}grpc_calls_total", "method"),
                gauge(
                    "Failed gRPC Calls",
                    f'sum by (method, code) (rate({BROKER}grpc_calls_total{{code!="OK"}}[$__rate_interval]))',
                    "{{method}} {{code}}",
                    "cps",
                ),
            ),
        ),
        (
            "Replicas",
            (
                gauge("Leaders", f"{BROKER}leader_partitions", "{{instance}}"),
                rate("ISR Shrinks", f"{BROKER}isr_shrinks_total", "instance"),
                rate("ISR Expands", f"{BROKER}isr_expands_total", "instance"),
                gauge(
                    "Records above the High Watermark",
                    f"sum by (topic) ({BROKER}replication_lag_records)",
                    "{{topic}}",
                ),
                gauge(
                    "Log Size",
                    f"sum by (topic) ({BROKER}partition_log_bytes)",
                    "{{topic}}",
                    "bytes",
                ),
                rate("Truncations", f"{BROKER}truncations_total", "instance"),
            ),
        ),
        (
            "Transactions",
            (
                rate("Transactions Completed", f"{BROKER}transactions_completed_total", "outcome"),
                rate("Transactions Ended By", f"{BROKER}transactions_completed_total", "ended_by"),
                rate("Fenced Requests", f"{BROKER}transactions_fenced_total", "instance"),
                quantiles("Time Open", f"{BROKER}transaction_open_seconds", "instance"),
                quantiles(
                    "Decision until Last Marker",
                    f"{BROKER}transaction_completion_seconds",
                    "instance",
                ),
                gauge("Open Transactions", f"{BROKER}transactions_open", "{{instance}}"),
                gauge(
                    "Oldest Open Transaction",
                    f"{BROKER}transaction_oldest_open_seconds",
                    "{{instance}}",
                    "s",
                ),
                gauge("Markers Pending", f"{BROKER}transaction_markers_pending", "{{instance}}"),
                gauge(
                    "Records behind Open Transactions",
                    f"sum by (topic) ({BROKER}stable_lag_records)",
                    "{{topic}}",
                ),
            ),
        ),
        (
            "Disks and processes",
            (
                gauge("Free Disk Space", f"{BROKER}disk_free_bytes", "{{instance}}", "bytes"),
                quantiles("Sync Latency", f"{BROKER}fsync_seconds", "instance"),
                gauge("Jobs Waiting for Disk", f"{BROKER}disk_pool_pending", "{{instance}}"),
                rate(
                    "CPU Usage", f"process_cpu_seconds_total{PROCESSES}", "instance", "percentunit"
                ),
                gauge(
                    "Memory Usage",
                    f"process_resident_memory_bytes{PROCESSES}",
                    "{{instance}}",
                    "bytes",
                ),
                gauge("Open File Descriptors", f"process_open_fds{PROCESSES}", "{{instance}}"),
                gauge("Event Loop Lag", f"{BROKER}event_loop_lag_seconds", "{{instance}}", "s"),
                gauge("Time until Lease Expires", f"{BROKER}lease_seconds", "{{instance}}", "s"),
                rate("Quota Throttling", f"{BROKER}kafka_throttled_seconds_total", "instance", "s"),
            ),
        ),
        (
            "Metadata quorum",
            (
                gauge("Raft Leader", f"{QUORUM}raft_leader", "{{instance}}"),
                gauge("Term", f"{QUORUM}raft_term", "{{instance}}"),
                gauge("Committed Offset", f"{QUORUM}commit_offset", "{{instance}}"),
                gauge("Lag of Members", f"{QUORUM}peer_lag_entries", "{{peer}}"),
                gauge(
                    "Sync of the Raft Log, 99th Percentile",
                    "histogram_quantile(0.99, sum by (le, instance)"
                    f" (rate({QUORUM}fsync_seconds_bucket[$__rate_interval])))",
                    "{{instance}}",
                    "s",
                ),
                rate("Leader Elections", f"{QUORUM}leader_elections_total", "instance"),
            ),
        ),
    ),
)

GROUPS = Dashboard(
    uid="odradek-groups",
    title="Odradek / Consumer groups",
    rows=(
        (
            "Lag",
            (
                gauge(
                    "Lag by Consumer Group",
                    "max by (consumergroup, topic) (kafka_consumergroup_lag_sum)",
                    "{{consumergroup}} {{topic}}",
                ),
                gauge(
                    "Lag by Partition",
                    "max by (consumergroup, topic, partition) (kafka_consumergroup_lag)",
                    "{{consumergroup}} {{topic}}-{{partition}}",
                ),
                gauge(
                    "Members",
                    "max by (consumergroup) (kafka_consumergroup_members)",
                    "{{consumergroup}}",
                ),
            ),
        ),
        (
            "Progress",
            (
                gauge(
                    "Messages Consumed per Second",
                    once_of_gateways(
                        "consumergroup, topic",
                        "clamp_min(deriv(kafka_consumergroup_current_offset[5m]), 0)",
                    ),
                    "{{consumergroup}} {{topic}}",
                    "cps",
                ),
                gauge(
                    "Messages In per Second",
                    once_of_gateways(
                        "topic", "clamp_min(deriv(kafka_topic_partition_current_offset[5m]), 0)"
                    ),
                    "{{topic}}",
                    "cps",
                ),
                gauge(
                    "Records in Topic",
                    once_of_gateways(
                        "topic",
                        "kafka_topic_partition_current_offset"
                        " - kafka_topic_partition_oldest_offset",
                    ),
                    "{{topic}}",
                ),
            ),
        ),
    ),
)

GATEWAY = Dashboard(
    uid="odradek-gateway",
    title="Odradek / Gateway",
    rows=(
        (
            "Requests",
            (
                rate("Requests", "odradek_gateway_requests_total", "status"),
                quantiles("Latency", "odradek_gateway_request_latency_seconds", "instance"),
                gauge("Running Requests", "odradek_gateway_requests_at_work", "{{instance}}"),
                gauge("Consumer Instances", "odradek_gateway_consumer_instances", "{{instance}}"),
                gauge(
                    "Failed Reads of Cluster Metrics", "odradek_gateway_scrape_failed", "{{part}}"
                ),
            ),
        ),
    ),
)
DASHBOARDS = (CLUSTER, GROUPS, GATEWAY)


def document(dashboard: Dashboard) -> dict[str, Any]:
    """Return the dashboard as Grafana's JSON model."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in dashboard.rows:
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "panels": []}
            | {"collapsed": False, "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}}
        )
        y += 1
        y = _place(row, panels, y)
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["odradek"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                }
            ]
        },
        "panels": panels,
    }


def _place(row: Sequence[Panel], panels: list[dict[str, Any]], y: int) -> int:
    """Add a row's panels from left to right, and return the first free y below them."""
    x = height = 0
    for panel in row:
        if x + panel.width > WIDTH:
            x, y = 0, y + height
        height = 4 if panel.kind == "stat" else 8
        source = {"type": "prometheus", "uid": "${datasource}"}
        panels.append(
            {
                "id": len(panels) + 1,
                "type": panel.kind,
                "title": panel.title,
                "datasource": source,
                "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {
                        "refId": chr(ord("A") + index),
                        "datasource": source,
                        "expr": expr,
                        "legendFormat": legend,
                    }
                    for index, (expr, legend) in enumerate(panel.lines)
                ],
            }
        )
        x += panel.width
    return y + height
