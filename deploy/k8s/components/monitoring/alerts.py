"""The Prometheus alerts; those for symptoms come first. The names of jobs are those of the ServiceMonitors' services:
quorum, broker, gateway. `critical` means that records are refused or in danger now, `warning` that they may be soon.
"""

from __future__ import annotations

from dataclasses import dataclass

BROKER = "odradek_broker_"
QUORUM = "odradek_metadata_quorum_"
GATEWAY = "odradek_gateway_"
ACTIVE = f"({QUORUM}active_controller == 1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alerting rule; `summary` names the problem, `action` the remedy."""

    name: str
    expr: str
    lasts: str
    severity: str
    summary: str
    action: str


def of_active(metric: str) -> str:
    """Return an expression that selects a cluster-wide metric as the active controller reports it."""
    return f"max(({QUORUM}{metric}) and on (instance) {ACTIVE})"


ALERTS = (
    Alert(
        name="OdradekOfflinePartitions",
        expr=f"{of_active('offline_partitions')} > 0",
        lasts="1m",
        severity="critical",
        summary="{{ $value }} partitions have no leader: they cannot be written or read",
        action="Bring back the brokers that hold them (`odradek topic describe` names the replicas).",
    ),
    Alert(
        name="OdradekPartitionsUnderMinIsr",
        expr=f"{of_active('partitions_under_min_isr')} > 0",
        lasts="1m",
        severity="critical",
        summary="{{ $value }} partitions refuse acks=all: too few replicas are in sync",
        action="Look for brokers that are down, slow, or have a full disk.",
    ),
    Alert(
        name="OdradekUnderReplicatedPartitions",
        expr=f"{of_active('under_replicated_partitions')} > 0",
        lasts="10m",
        severity="warning",
        summary="{{ $value }} partitions lack a replica in sync for ten minutes",
        action="Look for a broker that is down or cannot keep up; a new copy of a large log takes long.",
    ),
    Alert(
        name="OdradekActiveControllers",
        expr=f"sum({QUORUM}active_controller) != 1",
        lasts="1m",
        severity="critical",
        summary="{{ $value }} controllers are active: there must be exactly one",
        action="Without one, no leader is elected when a broker fails: make sure that most controllers are up.",
    ),
    Alert(
        name="OdradekQuorumHasNoLeader",
        expr=f"sum({QUORUM}raft_leader) == 0",
        lasts="1m",
        severity="critical",
        summary="the metadata quorum has no leader",
        action="Make sure that most controllers are up, reach each other, and can write to their disks.",
    ),
    Alert(
        name="OdradekQuorumMemberBehind",
        expr=f"max by (peer) ({QUORUM}peer_lag_entries) > 1000",
        lasts="5m",
        severity="warning",
        summary="controller {{ $labels.peer }} is {{ $value }} entries behind: the quorum has no spare",
        action="Check that it runs, and how slow its disk is.",
    ),
    Alert(
        name="OdradekFencedBrokers",
        expr=f"{of_active('fenced_brokers')} > 0",
        lasts="5m",
        severity="warning",
        summary="{{ $value }} registered brokers are fenced",
        action="Start them, or unregister those that will not come back.",
    ),
    Alert(
        name="OdradekUncleanLeaderElection",
        expr=f"sum(increase({QUORUM}unclean_leader_elections_total[10m])) > 0",
        lasts="0m",
        severity="critical",
        summary="a leader was elected that may lack acknowledged records",
        action="Find out which records were lost: `odradek topic describe` shows epochs and offsets.",
    ),
    Alert(
        name="OdradekTransactionTorn",
        expr=f'increase({BROKER}transactions_damaged_total{{kind="torn"}}[10m]) > 0',
        lasts="0m",
        severity="critical",
        summary="a transaction is committed in one partition and aborted in another, led by {{ $labels.instance }}",
        action="`odradek transaction find-hanging` names it. It follows an unclean election or a loss of power.",
    ),
    Alert(
        name="OdradekTransactionMarkerLost",
        expr=f'increase({BROKER}transactions_damaged_total{{kind!="torn"}}[10m]) > 0',
        lasts="0m",
        severity="warning",
        summary="{{ $labels.instance }} ended a transaction whose marker was lost",
        action="`odradek transaction find-hanging` names it. Look for an unclean election or a loss of power.",
    ),
    Alert(
        name="OdradekTransactionHangs",
        expr=f"{BROKER}hanging_transactions > 0",
        lasts="0m",
        severity="warning",
        summary="{{ $value }} transactions on {{ $labels.instance }} will never end and hold back committed readers",
        action="End them: `odradek transaction find-hanging --abort`.",
    ),
    Alert(
        name="OdradekTransactionMarkersLate",
        expr=f"{BROKER}transaction_oldest_marker_seconds > 60",
        lasts="1m",
        severity="warning",
        summary="a decided transaction of {{ $labels.instance }} lacks a marker for {{ $value | humanizeDuration }}",
        action="Look for partitions without a leader or below min.insync.replicas (`odradek cluster health`).",
    ),
    Alert(
        name="OdradekTransactionOpenLong",
        expr=f"{BROKER}transaction_oldest_open_seconds > 2 * 900",
        lasts="5m",
        severity="warning",
        summary="a transaction is open for {{ $value | humanizeDuration }} and holds back committed readers",
        action="`odradek transaction list --state Ongoing --older-than 30m` names it; a staged write may take long.",
    ),
    Alert(
        name="OdradekLogDirectoryOffline",
        expr=f"{BROKER}log_directory_offline == 1",
        lasts="0m",
        severity="critical",
        summary="{{ $labels.instance }} had a disk error",
        action="Replace the volume; the broker copies its partitions again.",
    ),
    Alert(
        name="OdradekPartitionBug",
        expr=f"increase({BROKER}partition_bugs_total[10m]) > 0",
        lasts="0m",
        severity="critical",
        summary="a replica of {{ $labels.instance }} failed on an internal error; others lead its partition",
        action="Report the logged exception with its values; a restart of the broker brings the replica back.",
    ),
    Alert(
        name="OdradekRunningOutOfSpace",
        expr=(
            f"predict_linear({BROKER}disk_free_bytes[6h], 24 * 3600) < 0 or {BROKER}disk_free_bytes"
            f" < 0.15 * ({BROKER}disk_free_bytes + {BROKER}log_bytes)"
        ),
        lasts="30m",
        severity="warning",
        summary="the disk of {{ $labels.instance }} fills up",
        action="Shorten the retention, enlarge the volume, or move partitions away.",
    ),
    Alert(
        name="OdradekSlowSyncs",
        expr=f"histogram_quantile(0.99, sum by (le, instance) (rate({BROKER}fsync_seconds_bucket[5m]))) > 0.5",
        lasts="10m",
        severity="warning",
        summary="one in a hundred syncs of {{ $labels.instance }} takes {{ $value }} s",
        action="The disk is too slow for the load, or about to fail.",
    ),
    Alert(
        name="OdradekSlowQuorumSyncs",
        expr=f"histogram_quantile(0.99, sum by (le, instance) (rate({QUORUM}fsync_seconds_bucket[5m]))) > 0.2",
        lasts="10m",
        severity="warning",
        summary="one in a hundred syncs of the Raft log of {{ $labels.instance }} takes {{ $value }} s",
        action="Give controllers a disk of their own: elections and metadata wait for it.",
    ),
    Alert(
        name="OdradekMetadataSnapshotLarge",
        expr=f"{QUORUM}snapshot_taken_bytes / {QUORUM}snapshot_bytes_max > 0.5",
        lasts="0m",
        severity="warning",
        summary="the metadata snapshot of {{ $labels.instance }} is at {{ $value | humanizePercentage }} of its limit",
        action="Raise `metadata.log.max.snapshot.bytes` on every controller: above it no snapshot is stored.",
    ),
    Alert(
        name="OdradekMetadataSnapshotNotStored",
        expr=f"increase({QUORUM}snapshots_not_stored_total[1h]) > 0",
        lasts="0m",
        severity="critical",
        summary="{{ $labels.instance }} could not store its snapshot of the metadata: its log grows until it can",
        action="Its log shows whether the disk is full or the snapshot above `metadata.log.max.snapshot.bytes`.",
    ),
    Alert(
        name="OdradekEventLoopLate",
        expr=f"{BROKER}event_loop_lag_seconds > 0.5",
        lasts="5m",
        severity="warning",
        summary="the event loop of {{ $labels.instance }} is {{ $value }} s late: it needs more than one core",
        action="Add brokers, and move partitions to them.",
    ),
    Alert(
        name="OdradekConsumerLagGrows",
        expr=(
            "max by (consumergroup, topic) (min_over_time(kafka_consumergroup_lag_sum[15m])) > 1000"
            " and max by (consumergroup, topic) (deriv(kafka_consumergroup_lag_sum[15m])) > 0"
        ),
        lasts="15m",
        severity="warning",
        summary="group {{ $labels.consumergroup }} falls behind on {{ $labels.topic }}: {{ $value }} records",
        action="Add members, or find out why they are slow; retention deletes records that they do not read in time.",
    ),
    Alert(
        name="OdradekGatewayErrors",
        expr=(
            'sum(rate(odradek_gateway_requests_total{status=~"5.."}[5m]))'
            " / sum(rate(odradek_gateway_requests_total[5m])) > 0.05"
        ),
        lasts="10m",
        severity="warning",
        summary="{{ $value | humanizePercentage }} of the gateways' responses are server errors",
        action="Check the gateways' logs, and whether they reach the brokers.",
    ),
    Alert(
        name="OdradekRestarts",
        expr='changes(process_start_time_seconds{job=~"quorum|broker|gateway"}[30m]) > 2',
        lasts="0m",
        severity="warning",
        summary="{{ $labels.instance }} started {{ $value }} times within half an hour",
        action="The end of its previous log shows why (`kubectl logs --previous`).",
    ),
    Alert(
        name="OdradekCertificateEnds",
        expr=" or ".join(
            f"{prefix}certificate_expiry_timestamp_seconds - time() < 7 * 86400"
            for prefix in (BROKER, QUORUM, GATEWAY)
        ),
        lasts="5m",
        severity="critical",
        summary="{{ $labels.setting }} of {{ $labels.instance }} ends in {{ $value | humanizeDuration }}",
        action="Find out why it was not renewed (CronJob renew-certificates, or cert-manager); peers will refuse it.",
    ),
    Alert(
        name="OdradekScrapeProblem",
        expr='up{job=~"quorum|broker|gateway"} == 0 or absent(up{job="quorum"}) or absent(up{job="broker"})',
        lasts="5m",
        severity="warning",
        summary="{{ $labels.job }} {{ $labels.instance }} cannot be scraped: other alerts lack its metrics",
        action="Check the pod, the network policy for the monitoring namespace, and the certificates.",
    ),
)
