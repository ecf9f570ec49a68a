"""The Prometheus alerts. Alerts on symptoms come first. The label `job` has the name of a service that a ServiceMonitor
selects: quorum, broker or gateway. The severity `critical` means that records are refused or may be lost now, and
`warning` that this may happen soon.
"""

from __future__ import annotations

from dataclasses import dataclass

BROKER = "odradek_broker_"
QUORUM = "odradek_metadata_quorum_"
GATEWAY = "odradek_gateway_"
ACTIVE = f"({QUORUM}active_controller == 1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A Prometheus alerting rule. `lasts` is its `for`, `summary` names the problem, and `action` says what to do."""

    name: str
    expr: str
    lasts: str
    severity: str
    summary: str
    action: str


def of_active(metric: str) -> str:
    """Return a PromQL expression for a cluster-wide metric. Every controller exports the metric, but only the value of
    the active controller is right.
    """
    return f"max(({QUORUM}{metric}) and on (instance) {ACTIVE})"


ALERTS = (
    Alert(
        name="OdradekOfflinePartitions",
        expr=f"{of_active('offline_partitions')} > 0",
        lasts="1m",
        severity="critical",
        summary="{{ $value }} partitions have no leader: clients can neither write to nor read from them",
        action="Start the brokers that have replicas of these partitions (`odradek topic describe` names the brokers).",
    ),
    Alert(
        name="OdradekPartitionsUnderMinIsr",
        expr=f"{of_active('partitions_under_min_isr')} > 0",
        lasts="1m",
        severity="critical",
        summary="{{ $value }} partitions refuse writes with acks=all: fewer than min.insync.replicas are in sync",
        action="Look for brokers that are down, are slow, or have a full disk.",
    ),
    Alert(
        name="OdradekUnderReplicatedPartitions",
        expr=f"{of_active('under_replicated_partitions')} > 0",
        lasts="10m",
        severity="warning",
        summary="{{ $value }} partitions have had replicas out of sync for ten minutes",
        action="Look for a broker that is down or cannot keep up. Copying a large log to a new replica takes long.",
    ),
    Alert(
        name="OdradekActiveControllers",
        expr=f"sum({QUORUM}active_controller) != 1",
        lasts="1m",
        severity="critical",
        summary="{{ $value }} controllers are active, but there must be exactly one",
        action="Make sure that a majority of the controllers is up: without an active controller no leader is elected"
        " when a broker fails.",
    ),
    Alert(
        name="OdradekQuorumHasNoLeader",
        expr=f"sum({QUORUM}raft_leader) == 0",
        lasts="1m",
        severity="critical",
        summary="the metadata quorum has no leader",
        action="Make sure that a majority of the controllers is up, that they reach each other, and that they can write"
        " to their disks.",
    ),
    Alert(
        name="OdradekQuorumMemberBehind",
        expr=f"max by (peer) ({QUORUM}peer_lag_entries) > 1000",
        lasts="5m",
        severity="warning",
        summary="controller {{ $labels.peer }} is {{ $value }} entries behind: if another controller fails, the quorum"
        " may be unavailable",
        action="Check that the controller runs, and how slow its disk is.",
    ),
    Alert(
        name="OdradekFencedBrokers",
        expr=f"{of_active('fenced_brokers')} > 0",
        lasts="5m",
        severity="warning",
        summary="{{ $value }} registered brokers are fenced",
        action="Start these brokers, or unregister those that will not return (`odradek cluster unregister`).",
    ),
    Alert(
        name="OdradekUncleanLeaderElection",
        expr=f"sum(increase({QUORUM}unclean_leader_elections_total[10m])) > 0",
        lasts="0m",
        severity="critical",
        summary="an unclean leader election happened: the new leader may lack acknowledged records",
        action="Find out which records were lost: `odradek topic describe` shows leader epochs and offsets.",
    ),
    Alert(
        name="OdradekTransactionTorn",
        expr=f'increase({BROKER}transactions_damaged_total{{kind="torn"}}[10m]) > 0',
        lasts="0m",
        severity="critical",
        summary="a transaction is committed in one partition and aborted in another, led by {{ $labels.instance }}",
        action="`odradek transaction find-hanging` names the transaction. The cause is an unclean leader election or a"
        " loss of power.",
    ),
    Alert(
        name="OdradekTransactionMarkerLost",
        expr=f'increase({BROKER}transactions_damaged_total{{kind!="torn"}}[10m]) > 0',
        lasts="0m",
        severity="warning",
        summary="{{ $labels.instance }} ended a transaction whose marker was lost",
        action="`odradek transaction find-hanging` names the transaction. Look for an unclean leader election or a loss"
        " of power.",
    ),
    Alert(
        name="OdradekTransactionHangs",
        expr=f"{BROKER}hanging_transactions > 0",
        lasts="0m",
        severity="warning",
        summary="{{ $value }} transactions on {{ $labels.instance }} never end by themselves and block consumers with"
        " read_committed",
        action="Abort these transactions: `odradek transaction find-hanging --abort`.",
    ),
    Alert(
        name="OdradekTransactionMarkersLate",
        expr=f"{BROKER}transaction_oldest_marker_seconds > 60",
        lasts="1m",
        severity="warning",
        summary="{{ $labels.instance }} has been trying to write a marker of a decided transaction for"
        " {{ $value | humanizeDuration }}",
        action="Look for partitions without a leader or below min.insync.replicas (`odradek cluster health`).",
    ),
    Alert(
        name="OdradekTransactionOpenLong",
        expr=f"{BROKER}transaction_oldest_open_seconds > 2 * 900",
        lasts="5m",
        severity="warning",
        summary="a transaction has been open for {{ $value | humanizeDuration }} and blocks consumers with"
        " read_committed",
        action="`odradek transaction list --state Ongoing --older-than 30m` names the transaction. A staged write may"
        " take that long.",
    ),
    Alert(
        name="OdradekLogDirectoryOffline",
        expr=f"{BROKER}log_directory_offline == 1",
        lasts="0m",
        severity="critical",
        summary="a log directory of {{ $labels.instance }} is offline after a disk error",
        action="Replace the volume. The broker then copies its partitions again.",
    ),
    Alert(
        name="OdradekPartitionBug",
        expr=f"increase({BROKER}partition_bugs_total[10m]) > 0",
        lasts="0m",
        severity="critical",
        summary="a replica on {{ $labels.instance }} went offline because of a bug; other replicas lead its partition",
        action="Restart the broker to start the replica again, and report the exception in the broker's log.",
    ),
    Alert(
        name="OdradekRunningOutOfSpace",
        expr=(
            f"predict_linear({BROKER}disk_free_bytes[6h], 24 * 3600) < 0 or {BROKER}disk_free_bytes"
            f" < 0.15 * ({BROKER}disk_free_bytes + {BROKER}log_bytes)"
        ),
        lasts="30m",
        severity="warning",
        summary="the disk of {{ $labels.instance }} will soon be full",
        action="Shorten the retention, enlarge the volume, or move partitions away.",
    ),
    Alert(
        name="OdradekSlowSyncs",
        expr=f"histogram_quantile(0.99, sum by (le, instance) (rate({BROKER}fsync_seconds_bucket[5m]))) > 0.5",
        lasts="10m",
        severity="warning",
        summary="one in a hundred fsyncs of {{ $labels.instance }} takes {{ $value }} s or longer",
        action="Use a faster disk, or move partitions to other brokers. Check whether the disk is about to fail.",
    ),
    Alert(
        name="OdradekSlowQuorumSyncs",
        expr=f"histogram_quantile(0.99, sum by (le, instance) (rate({QUORUM}fsync_seconds_bucket[5m]))) > 0.2",
        lasts="10m",
        severity="warning",
        summary="one in a hundred fsyncs of the Raft log of {{ $labels.instance }} takes {{ $value }} s or longer",
        action="Give each controller a separate disk: leader elections and metadata changes wait for these fsyncs.",
    ),
    Alert(
        name="OdradekMetadataSnapshotLarge",
        expr=f"{QUORUM}snapshot_taken_bytes / {QUORUM}snapshot_bytes_max > 0.5",
        lasts="0m",
        severity="warning",
        summary="the metadata snapshot of {{ $labels.instance }} is at {{ $value | humanizePercentage }} of its limit",
        action="Raise `metadata.log.max.snapshot.bytes` on every controller: a larger snapshot is not stored.",
    ),
    Alert(
        name="OdradekMetadataSnapshotNotStored",
        expr=f"increase({QUORUM}snapshots_not_stored_total[1h]) > 0",
        lasts="0m",
        severity="critical",
        summary="{{ $labels.instance }} could not store its metadata snapshot: its Raft log grows until a snapshot is"
        " stored",
        action="The controller's log says whether the disk is full or the snapshot is larger than"
        " `metadata.log.max.snapshot.bytes`.",
    ),
    Alert(
        name="OdradekEventLoopLate",
        expr=f"{BROKER}event_loop_lag_seconds > 0.5",
        lasts="5m",
        severity="warning",
        summary="the event loop of {{ $labels.instance }} is {{ $value }} s late: the broker has more load than one"
        " core can handle",
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
        summary="group {{ $labels.consumergroup }} is {{ $value }} records behind on {{ $labels.topic }}, and its lag"
        " grows",
        action="Add members to the group, or find out why its members are slow. Retention deletes records that the"
        " group does not read in time.",
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
        action="Check the gateways' logs, and whether the gateways reach the brokers.",
    ),
    Alert(
        name="OdradekRestarts",
        expr='changes(process_start_time_seconds{job=~"quorum|broker|gateway"}[30m]) > 2',
        lasts="0m",
        severity="warning",
        summary="{{ $labels.instance }} started {{ $value }} times within half an hour",
        action="Read the end of the previous log, which shows the reason (`kubectl logs --previous`).",
    ),
    Alert(
        name="OdradekCertificateEnds",
        expr=" or ".join(
            f"{prefix}certificate_expiry_timestamp_seconds - time() < 7 * 86400"
            for prefix in (BROKER, QUORUM, GATEWAY)
        ),
        lasts="5m",
        severity="critical",
        summary="the certificate in {{ $labels.setting }} of {{ $labels.instance }} expires in"
        " {{ $value | humanizeDuration }}",
        action="Find out why the certificate was not renewed (CronJob renew-certificates, or cert-manager). When it has"
        " expired, other processes refuse connections with it.",
    ),
    Alert(
        name="OdradekScrapeProblem",
        expr='up{job=~"quorum|broker|gateway"} == 0 or absent(up{job="quorum"}) or absent(up{job="broker"})',
        lasts="5m",
        severity="warning",
        summary="Prometheus cannot scrape {{ $labels.job }} {{ $labels.instance }}: alerts that need its metrics do"
        " not fire",
        action="Check the pod, the network policy for the namespace `monitoring`, and the certificates.",
    ),
)
