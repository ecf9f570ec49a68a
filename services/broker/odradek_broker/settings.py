"""`BrokerSettings`: every setting of a broker. A setting that Kafka has too keeps Kafka's name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odradek_broker.listener_settings import ListenerSettings
from odradek_protocol.identity import BrokerId
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_runtime.listeners import parse_endpoints
from odradek_runtime.settings import SettingsError, setting

ENV_PREFIX: Final = "ODRADEK_BROKER_"
_INT32_MAX: Final = (1 << 31) - 1


def _one_directory(text: str) -> Path:
    if "," in text:
        raise ValueError(
            "a list is not supported, because a broker has one data directory: run one broker per disk"
        )
    if not text.strip():
        raise ValueError("the path of the data directory is empty")
    return Path(text.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(ListenerSettings):
    """All settings of a broker. Those of its logs and its listeners are inherited."""

    node_id: int = setting(
        "node.id",
        "ID of this broker, unique in the cluster.",
        minimum=0,
        maximum=_INT32_MAX,
        aliases=("broker.id",),
    )
    cluster_id: str = setting(
        "cluster.id",
        "ID of the cluster that this broker joins. An empty data directory is formatted for this cluster.",
        default="",
    )
    log_dir: Path = setting(
        "log.dirs",
        "Path of the data directory. Only one directory is supported.",
        parse=_one_directory,
        aliases=("log.dir",),
    )
    controllers: tuple[tuple[int, str, int], ...] = setting(
        "controller.rpc.endpoints",
        "The gRPC endpoints of all controllers, as ID@host:port, separated by commas.",
        parse=parse_endpoints,
        aliases=("controller.rpc.bootstrap",),
    )
    rack: str = setting(
        "broker.rack", "Rack or availability zone of this broker. Empty: none.", default=""
    )

    replica_lag_time_max_ms: int = setting(
        "replica.lag.time.max.ms",
        "A follower that has not caught up with its leader for this long is removed from the ISR.",
        default=10_000,
        unit="ms",
        minimum=100,
    )
    replica_fetch_bytes_max: int = setting(
        "replica.fetch.max.bytes",
        "Maximum bytes of records of one partition in one replication message to a follower.",
        default=1 << 20,
        unit="bytes",
        minimum=1024,
        maximum=32 << 20,
    )
    replica_fetch_response_bytes_max: int = setting(
        "replica.fetch.response.max.bytes",
        "Maximum size of a replication message from a leader to a follower.",
        default=4 << 20,
        unit="bytes",
        minimum=1024,
        maximum=48 << 20,
    )
    replica_credit_bytes: int = setting(
        "replica.credit.bytes",
        "Maximum bytes of records that a leader may send on one replication stream to this broker before this broker"
        " has stored them.",
        default=16 << 20,
        unit="bytes",
        minimum=1 << 20,
    )
    follower_replication_throttled_rate: int = setting(
        "follower.replication.throttled.rate",
        "Maximum bytes per second that all followers on this broker together receive while they are far behind their"
        " leaders, so that their catch-up does not slow down other replicas. Followers near the end of the log are not"
        " limited. 0: no limit. A dynamic config of this broker, or of all brokers, overrides this setting.",
        default=0,
        unit="bytes/s",
        minimum=0,
    )
    replica_selector: str = setting(
        "replica.selector.class",
        "rack: a consumer fetches from an in-sync replica in its own rack. Empty: a consumer fetches from the leader.",
        default="",
        choices=(
            "",
            "rack",
            "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        ),
    )
    heartbeat_interval_ms: int = setting(
        "broker.heartbeat.interval.ms",
        "Time between heartbeats to the controllers.",
        default=250,
        unit="ms",
        minimum=10,
    )
    session_timeout_ms: int = setting(
        "broker.session.timeout.ms",
        "Time without a heartbeat after which the controllers fence a broker. It must equal the controllers' own"
        " setting. The broker's lease is 0.8 of this time: without a response from a controller for that long, the"
        " broker stops serving as a leader.",
        default=3_000,
        unit="ms",
        minimum=100,
    )
    acks_all_without_controller: bool = setting(
        "acks.all.without.controller.enable",
        "Whether acks=all produce requests still succeed after the lease has expired because no controller"
        " responds, provided that another in-sync replica has acknowledged the records. Fetches and acks=1"
        " requests always fail without the lease.",
        default=True,
    )
    controlled_shutdown_timeout_ms: int = setting(
        "controlled.shutdown.timeout.ms",
        "How long a stopping broker waits for its leaderships to move to other brokers. After that it stops"
        " anyway, and its next start counts as one after an unclean shutdown.",
        default=5_000,
        unit="ms",
        minimum=100,
    )
    readiness_catch_up_timeout_ms: int = setting(
        "readiness.catch.up.timeout.ms",
        "How long after its start a broker reports that it is not ready while any of its replicas is not in"
        " sync, or while a live broker that shares a partition with it has not connected to it. A rolling"
        " restart thus waits for the replicas before it restarts the next broker.",
        default=300_000,
        unit="ms",
        minimum=0,
    )
    pool_threads_max: int = setting(
        "background.threads",
        "Maximum number of threads for syncs to disk and for reads that miss the page cache.",
        default=8,
        minimum=1,
        maximum=64,
    )

    fetch_bytes_max: int = setting(
        "fetch.max.bytes",
        "Maximum size of the response to a fetch request. If the first batch is larger, it is still returned.",
        default=55 << 20,
        unit="bytes",
        minimum=1024,
    )

    connections_max: int = setting(
        "max.connections",
        "Maximum number of open connections of all Kafka listeners together, and of each gRPC listener. All gRPC"
        " listeners together use at most a quarter of the process's file descriptors.",
        default=10_000,
        minimum=1,
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        "A Kafka connection that is idle for longer is closed. A gRPC connection without a call is closed after"
        " this time or 120 s, whichever is shorter.",
        default=600_000,
        unit="ms",
        minimum=1,
    )
    connections_max_per_ip: int = setting(
        "max.connections.per.ip",
        "Maximum number of connections from one IP address to all Kafka listeners together, and to each gRPC listener"
        " for clients. A gRPC listener accepts at most three quarters of its maximum from one address.",
        default=_INT32_MAX,
        minimum=1,
    )
    queued_request_bytes_max: int = setting(
        "queued.max.request.bytes",
        "Maximum bytes of large requests that have partly arrived, on all Kafka connections together; also the maximum"
        " memory of decoded large requests. At the limit, all of these connections but one wait until other requests"
        " are complete. Parts of large requests may be kept in a file in log.dirs. One client (a principal, or an"
        " address if it is not authenticated) may use an eighth of the limit for arriving requests and a quarter for"
        " decoded ones.",
        default=256 << 20,
        unit="bytes",
        minimum=1 << 20,
    )
    socket_request_bytes_max: int = setting(
        "socket.request.max.bytes",
        "Maximum size of a request that a Kafka listener accepts. A larger request closes the connection.",
        default=100 << 20,
        unit="bytes",
        minimum=1024,
    )

    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        "How long the first rebalance of an empty classic group waits for more members.",
        default=3_000,
        unit="ms",
        minimum=0,
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        "Minimum session timeout that a member of a classic group may request.",
        default=6_000,
        unit="ms",
        minimum=1,
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        "Maximum session timeout that a member of a classic group may request.",
        default=1_800_000,
        unit="ms",
        minimum=1,
    )
    group_max_size: int = setting(
        "group.max.size",
        "Maximum number of members of a classic group. Further members are refused.",
        default=_INT32_MAX,
        minimum=1,
    )
    group_consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        "A member of a consumer group (KIP-848) that sends no heartbeat for this long is removed.",
        default=45_000,
        unit="ms",
        minimum=1,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        "Heartbeat interval of the members of a consumer group (KIP-848) that does not rebalance.",
        default=3_000,
        unit="ms",
        minimum=1,
    )
    group_consumer_rebalance_heartbeat_interval_ms: int = setting(
        "group.consumer.rebalance.heartbeat.interval.ms",
        "Heartbeat interval of members of a consumer group while the group rebalances, or while the session of one of"
        " them is about to expire (not in Kafka).",
        default=500,
        unit="ms",
        minimum=1,
    )
    group_consumer_max_size: int = setting(
        "group.consumer.max.size",
        "Maximum number of members of a consumer group (KIP-848). Further members are refused.",
        default=_INT32_MAX,
        minimum=1,
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        "group.consumer.assignors",
        "Server-side assignors that consumer groups may choose. The first one is the default.",
        default=("uniform", "range"),
    )
    group_consumer_migration_policy: str = setting(
        "group.consumer.migration.policy",
        "Whether a group with members may change its protocol: upgrade is from classic to consumer, downgrade is"
        " from consumer to classic.",
        default="bidirectional",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    )
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        "Number of partitions of __consumer_offsets. It has an effect only when the topic is created.",
        default=50,
        minimum=1,
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        "Replication factor of __consumer_offsets. The topic is created with a lower factor if fewer"
        " brokers are live.",
        default=3,
        minimum=1,
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes",
        "Segment size of __consumer_offsets. It has an effect only when the topic is created.",
        default=100 << 20,
        unit="bytes",
        minimum=1,
    )
    offsets_topic_durability: str = setting(
        "offsets.topic.durability",
        "When a replica counts records of __consumer_offsets as stored: replicated, once they are written to the"
        " operating system; fsync, once they are synced to disk. It has an effect only when the topic is created.",
        default="replicated",
        choices=("replicated", "fsync"),
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        "How long the committed offsets of a group without members are kept.",
        default=10_080,
        unit="min",
        minimum=1,
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        "Time between two checks for expired offsets.",
        default=600_000,
        unit="ms",
        minimum=1,
    )
    offset_metadata_bytes_max: int = setting(
        "offset.metadata.max.bytes",
        "Maximum length of the metadata string that a client may commit with an offset.",
        default=4096,
        unit="bytes",
        minimum=0,
    )

    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        "A transactional id that has not been used for this long is deleted.",
        default=604_800_000,
        unit="ms",
        minimum=1,
    )
    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        "Maximum transaction timeout that a producer may request.",
        default=900_000,
        unit="ms",
        minimum=1,
    )
    transaction_topic_num_partitions: int = setting(
        "transaction.state.log.num.partitions",
        "Number of partitions of __transaction_state. It has an effect only when the topic is created.",
        default=50,
        minimum=1,
    )
    transaction_topic_replication_factor: int = setting(
        "transaction.state.log.replication.factor",
        "Replication factor of __transaction_state. The topic is created with a lower factor if fewer"
        " brokers are live.",
        default=3,
        minimum=1,
    )
    transaction_topic_min_isr: int = setting(
        "transaction.state.log.min.isr",
        "Number of in-sync replicas that a write to __transaction_state needs. It has an effect only when the topic"
        " is created, and is lowered to the number of replicas that the topic gets.",
        default=2,
        minimum=1,
    )
    transaction_topic_segment_bytes: int = setting(
        "transaction.state.log.segment.bytes",
        "Segment size of __transaction_state. It has an effect only when the topic is created.",
        default=100 << 20,
        unit="bytes",
        minimum=1,
    )
    transaction_remove_expired_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "Time between two checks for expired transactional ids.",
        default=3_600_000,
        unit="ms",
        minimum=1,
    )
    transaction_completion_wait_max_ms: int = setting(
        "transaction.completion.wait.max.ms",
        "How long a request that begins a producer's next transaction waits for the completion of the previous one"
        " (not in Kafka).",
        default=200,
        unit="ms",
        minimum=0,
        maximum=10_000,
    )
    transaction_verification_timeout_ms: int = setting(
        "transaction.verification.timeout.ms",
        "How long the first batch or the first committed offsets of a transaction wait for a response"
        " of the transaction's coordinator (not in Kafka). After that the client must send them again.",
        default=5_000,
        unit="ms",
        minimum=1,
        maximum=60_000,
    )
    transaction_load_grace_ms: int = setting(
        "transaction.load.grace.ms",
        "When a broker becomes the coordinator of open transactions, each of them times out after this time at the"
        " earliest (not in Kafka).",
        default=3_000,
        unit="ms",
        minimum=0,
    )
    transaction_hanging_check_interval_ms: int = setting(
        "transaction.hanging.check.interval.ms",
        "Time between two searches for open transactions whose marker was lost (not in Kafka).",
        default=60_000,
        unit="ms",
        minimum=1,
    )
    transaction_hanging_abort_enable: bool = setting(
        "transaction.hanging.abort.enable",
        "Whether the leader ends an open transaction whose marker was lost, after each coordinator has reported that it"
        " will not end the transaction (not in Kafka). Otherwise such a transaction is only logged.",
        default=True,
    )
    transaction_partitions_max: int = setting(
        "transaction.partitions.max",
        "Maximum number of partitions of one transaction (not in Kafka). A producer that writes to more partitions"
        " must abort the transaction.",
        default=10_000,
        minimum=1,
        maximum=100_000,
    )
    transaction_ids_max: int = setting(
        "transaction.ids.max",
        "Maximum number of transactional ids in one partition of __transaction_state (not in Kafka). Further ids are"
        " refused.",
        default=100_000,
        minimum=1,
    )
    transaction_staged_lease_ms: int = setting(
        "transaction.staged.lease.ms",
        "Records of a task of a staged write are aborted if the task has not renewed its lease for this long (not in"
        " Kafka). The lease replaces the transaction timeout, so a task may write for hours.",
        default=60_000,
        unit="ms",
        minimum=1_000,
    )
    transaction_prepared_timeout_ms: int = setting(
        "transaction.prepared.timeout.ms",
        "Prepared records of a staged write are aborted if their step has not been decided for this long since the last"
        " request for the step (not in Kafka). Until then they block read_committed consumers. A query may choose a"
        " shorter time; the Spark sink does.",
        default=3_600_000,
        unit="ms",
        minimum=1_000,
    )
    transaction_ledger_expiration_ms: int = setting(
        "transaction.ledger.expiration.ms",
        "How long the last complete step of a query of staged writes is remembered (not in Kafka). A query that is"
        " replayed later writes its records a second time.",
        default=7_776_000_000,
        unit="ms",
        minimum=1,
    )

    @property
    def lease_ms(self) -> int:
        """The duration of this broker's lease, which begins when the last heartbeat that got a response was sent.

        It is 0.8 of the session timeout, because the clocks of broker and controller may run at different speeds.
        """
        return self.session_timeout_ms * 4 // 5

    def check(self) -> None:
        """Raise SettingsError for settings that contradict each other."""
        self.check_listeners()
        if not self.controllers:
            raise SettingsError("controller.rpc.endpoints must name at least one controller")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise SettingsError(
                "group.min.session.timeout.ms is greater than group.max.session.timeout.ms: raise the maximum, or lower"
                " the minimum"
            )


def value_at_run_time(image: MetadataImage, broker_id: BrokerId, name: str, own: int) -> int:
    """Return the dynamic config `name` of this broker; if there is none, that of all brokers; if there is none either,
    `own`, the setting with which the process was started.
    """
    for broker in (str(broker_id), ""):
        value = image.config_of(ConfigResourceType.BROKER, broker).get(name)
        if value is not None:
            return int(value)
    return own
