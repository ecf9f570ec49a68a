"""A broker's settings, under Kafka's names where Kafka has one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from odradek_broker.log.log_config import Durability, LogConfig, TimestampKind
from odradek_runtime.listeners import ListenerAddress, parse_endpoints, parse_listeners
from odradek_runtime.settings import SettingsError, setting

ENV_PREFIX: Final = "ODRADEK_BROKER_"
KAFKA: Final = "KAFKA"
GRPC: Final = "GRPC"
REPLICATION: Final = "REPLICATION"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_HOUR_MS: Final = 3_600_000
_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1


def _one_directory(text: str) -> Path:
    if "," in text:
        raise ValueError(
            "a list is not supported: one broker keeps one data directory; run one broker per disk"
        )
    if not text.strip():
        raise ValueError("a path is wanted")
    return Path(text.strip())


def _policies(text: str) -> str:
    if not {part.strip() for part in text.split(",")} <= {"delete", "compact"}:
        raise ValueError("delete, compact, or both")
    return text


def is_kafka_listener(name: str) -> bool:
    """Whether clients speak Kafka's protocol on a listener of that name: KAFKA, KAFKA_EXTERNAL, ..."""
    return name == KAFKA or name.startswith(KAFKA + "_")


def _parse_protocols(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = entry.partition(":")
        if not colon or protocol.strip().upper() not in _PROTOCOLS:
            raise ValueError(f"{entry!r} is not NAME:PROTOCOL with one of {', '.join(_PROTOCOLS)}")
        found.append((name.strip().upper(), protocol.strip().upper()))
    return tuple(found)


def _parse_principals(text: str) -> tuple[str, ...]:
    principals = tuple(filter(None, (part.strip() for part in text.split(";"))))
    for principal in principals:
        if ":" not in principal:
            raise ValueError(f"{principal!r} is not TYPE:NAME, as User:alice")
    return principals


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Everything that can be set in a broker."""

    # --- who and where -------------------------------------------------------------------------
    node_id: int = setting(
        "node.id",
        "Id of this broker, unique in the cluster.",
        minimum=0,
        maximum=_INT32_MAX,
        aliases=("broker.id",),
    )
    cluster_id: str = setting(
        "cluster.id",
        "Id of the cluster; an empty data directory is formatted for it.",
        default="",
    )
    log_dir: Path = setting(
        "log.dirs",
        "The data directory.",
        parse=_one_directory,
        aliases=("log.dir",),
    )
    controllers: tuple[tuple[int, str, int], ...] = setting(
        "controller.rpc.endpoints",
        "ID@host:port of every controller's gRPC service.",
        parse=parse_endpoints,
        aliases=("controller.rpc.bootstrap",),
    )
    listeners: tuple[ListenerAddress, ...] = setting(
        "listeners",
        "NAME://host:port of KAFKA, GRPC and REPLICATION; port 0: any free one.",
        default=parse_listeners(
            "KAFKA://127.0.0.1:9092,GRPC://127.0.0.1:9090,REPLICATION://127.0.0.1:9093"
        ),
        parse=parse_listeners,
    )
    advertised_listeners: tuple[ListenerAddress, ...] = setting(
        "advertised.listeners",
        "What clients and peers dial; a listener that is not named here is told as it listens.",
        default=(),
        parse=parse_listeners,
    )
    rack: str = setting("broker.rack", "Rack or zone of this broker.", default="")
    metrics_host: str = setting(
        "metrics.host", "Address of /metrics, /livez and /readyz.", default="127.0.0.1"
    )
    metrics_port: int = setting(
        "metrics.port",
        "Port of /metrics, /livez and /readyz; 0: any free one, -1: none.",
        default=0,
        minimum=-1,
        maximum=65535,
    )
    log_level: str = setting(
        "log.level",
        "Least level of the process's own log.",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
    )
    ssl_certificate: str = setting(
        "ssl.certificate.location", "Certificate of this node, PEM.", default=""
    )
    ssl_key: str = setting("ssl.key.location", "Its private key, PEM.", default="")
    ssl_ca: str = setting("ssl.ca.location", "CA that signs the peers, PEM.", default="")
    ssl_client_auth: str = setting(
        "ssl.client.auth",
        "Whether clients must show a certificate.",
        default="none",
        choices=("none", "required"),
    )

    security_protocols: tuple[tuple[str, str], ...] = setting(
        "listener.security.protocol.map",
        "NAME:PROTOCOL of Kafka listeners: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; what is not"
        " named follows from the certificate and sasl.enabled.mechanisms.",
        default=(),
        parse=_parse_protocols,
    )
    sasl_mechanisms: tuple[str, ...] = setting(
        "sasl.enabled.mechanisms",
        "How clients of SASL listeners log in: PLAIN (under TLS only), SCRAM-SHA-256, SCRAM-SHA-512.",
        default=(),
    )
    authorizer: str = setting(
        "authorizer.class.name",
        "acl: nobody may do what no entry allows; empty: everybody may do everything.",
        default="",
        choices=("", "acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    )
    super_users: tuple[str, ...] = setting(
        "super.users",
        "Principals that may do everything, as User:alice, separated by semicolons.",
        default=(),
        parse=_parse_principals,
    )

    # --- topics --------------------------------------------------------------------------------
    num_partitions: int = setting(
        "num.partitions", "Partitions of a topic made without a count.", default=1, minimum=1
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        "Replicas of a topic made without a count.",
        default=1,
        minimum=1,
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        "In-sync replicas that acks=all needs, for topics without their own.",
        default=1,
        minimum=1,
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable",
        "Whether asking for the metadata of a missing topic may create it.",
        default=True,
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        "Whether a replica out of sync may lead when no other is left (loses records).",
        default=False,
    )

    # --- the log -------------------------------------------------------------------------------
    log_segment_bytes: int = setting(
        "log.segment.bytes", "Size of a segment.", default=1 << 30, unit="bytes", minimum=14
    )
    log_roll_ms: int = setting(
        "log.roll.ms",
        "Age at which a segment is closed; -1: log.roll.hours.",
        default=-1,
        unit="ms",
        minimum=-1,
    )
    log_roll_hours: int = setting(
        "log.roll.hours", "Age at which a segment is closed.", default=168, unit="h", minimum=1
    )
    log_index_size_max_bytes: int = setting(
        "log.index.size.max.bytes", "Size of an index.", default=10 << 20, unit="bytes", minimum=4
    )
    log_index_interval_bytes: int = setting(
        "log.index.interval.bytes",
        "Log bytes between two index entries.",
        default=4096,
        unit="bytes",
        minimum=0,
    )
    log_retention_bytes: int = setting(
        "log.retention.bytes",
        "Size of a partition above which segments leave; -1: no bound.",
        default=-1,
        unit="bytes",
        minimum=-1,
    )
    log_retention_ms: int = setting(
        "log.retention.ms",
        "Age at which segments leave; -1: never, -2: see log.retention.minutes.",
        default=-2,
        unit="ms",
        minimum=-2,
    )
    log_retention_minutes: int = setting(
        "log.retention.minutes",
        "Age at which segments leave; -2: see log.retention.hours.",
        default=-2,
        unit="min",
        minimum=-2,
    )
    log_retention_hours: int = setting(
        "log.retention.hours",
        "Age at which segments leave; -1: never.",
        default=168,
        unit="h",
        minimum=-1,
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        "Time between two looks for segments that may leave.",
        default=300_000,
        unit="ms",
        minimum=1,
    )
    log_cleanup_policy: str = setting(
        "log.cleanup.policy", "delete, compact, or both.", default="delete", parse=_policies
    )
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        "Time between two looks for partitions to compact.",
        default=15_000,
        unit="ms",
        minimum=0,
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        "log.cleaner.min.cleanable.ratio",
        "Share of uncleaned bytes from which compaction starts.",
        default=0.5,
        minimum=0,
        maximum=1,
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        "log.cleaner.min.compaction.lag.ms",
        "Age below which records are not compacted.",
        default=0,
        unit="ms",
        minimum=0,
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        "log.cleaner.max.compaction.lag.ms",
        "Age at which records are compacted whatever the ratio.",
        default=_INT64_MAX,
        unit="ms",
        minimum=1,
    )
    log_cleaner_delete_retention_ms: int = setting(
        "log.cleaner.delete.retention.ms",
        "How long a tombstone stays readable.",
        default=24 * _HOUR_MS,
        unit="ms",
        minimum=0,
    )
    log_segment_delete_delay_ms: int = setting(
        "log.segment.delete.delay.ms",
        "Time from taking a segment out to removing its files.",
        default=60_000,
        unit="ms",
        minimum=0,
    )
    log_message_timestamp_type: str = setting(
        "log.message.timestamp.type",
        "Whose clock timestamps show.",
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
    )
    log_message_timestamp_before_max_ms: int = setting(
        "log.message.timestamp.before.max.ms",
        "How far behind the broker's clock a record may be.",
        default=_INT64_MAX,
        unit="ms",
        minimum=0,
    )
    log_message_timestamp_after_max_ms: int = setting(
        "log.message.timestamp.after.max.ms",
        "How far ahead of the broker's clock a record may be.",
        default=_HOUR_MS,
        unit="ms",
        minimum=0,
    )
    log_durability_default: str = setting(
        "log.durability.default",
        "When an append counts as stored: written, or synced.",
        default="replicated",
        choices=("replicated", "fsync"),
    )
    log_checkpoint_interval_ms: int = setting(
        "log.flush.offset.checkpoint.interval.ms",
        "Time between two writes of the offset checkpoints.",
        default=5_000,
        unit="ms",
        minimum=100,
    )
    message_max_bytes: int = setting(
        "message.max.bytes",
        "Largest batch that a client may send.",
        default=(1 << 20) + 12,
        unit="bytes",
        minimum=0,
        maximum=48 << 20,
    )

    # --- replication ---------------------------------------------------------------------------
    replica_lag_time_max_ms: int = setting(
        "replica.lag.time.max.ms",
        "A follower not caught up for longer leaves the in-sync set.",
        default=10_000,
        unit="ms",
        minimum=100,
    )
    replica_fetch_bytes_max: int = setting(
        "replica.fetch.max.bytes",
        "Largest piece of one partition in one message to a follower.",
        default=1 << 20,
        unit="bytes",
        minimum=1024,
        maximum=32 << 20,
    )
    replica_fetch_response_bytes_max: int = setting(
        "replica.fetch.response.max.bytes",
        "Largest message to a follower.",
        default=4 << 20,
        unit="bytes",
        minimum=1024,
        maximum=48 << 20,
    )
    replica_credit_bytes: int = setting(
        "replica.credit.bytes",
        "Bytes that a leader may have on the way to this follower, per stream.",
        default=16 << 20,
        unit="bytes",
        minimum=1 << 20,
    )
    replica_selector: str = setting(
        "replica.selector.class",
        "rack: consumers are sent to an in-sync replica of their rack; empty: to the leader.",
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
        "Silence after which the controller fences; the lease is 0.8 of it.",
        default=3_000,
        unit="ms",
        minimum=100,
    )
    controlled_shutdown_timeout_ms: int = setting(
        "controlled.shutdown.timeout.ms",
        "Longest controlled shutdown; then the process ends without a clean marker.",
        default=5_000,
        unit="ms",
        minimum=100,
    )
    pool_threads_max: int = setting(
        "background.threads",
        "Threads for syncs and cold reads.",
        default=8,
        minimum=1,
        maximum=64,
    )

    # --- fetch ---------------------------------------------------------------------------------
    fetch_bytes_max: int = setting(
        "fetch.max.bytes",
        "Largest answer to a fetch, one batch excepted.",
        default=55 << 20,
        unit="bytes",
        minimum=1024,
    )

    # --- groups and transactions (coordinators) -------------------------------------------------
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        "How long the first rebalance of an empty group waits for more members.",
        default=3_000,
        unit="ms",
        minimum=0,
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        "Least session time-out of a member.",
        default=6_000,
        unit="ms",
        minimum=1,
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        "Greatest session time-out of a member.",
        default=1_800_000,
        unit="ms",
        minimum=1,
    )
    group_max_size: int = setting(
        "group.max.size", "Most members of a group.", default=_INT32_MAX, minimum=1
    )
    group_consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        "Session time-out of the consumer protocol (KIP-848).",
        default=45_000,
        unit="ms",
        minimum=1,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        "Heartbeat interval of the consumer protocol.",
        default=5_000,
        unit="ms",
        minimum=1,
    )
    group_consumer_max_size: int = setting(
        "group.consumer.max.size",
        "Most members of a consumer group.",
        default=_INT32_MAX,
        minimum=1,
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        "group.consumer.assignors",
        "Server-side assignors, the first is the default.",
        default=("uniform", "range"),
    )
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        "Partitions of __consumer_offsets.",
        default=50,
        minimum=1,
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        "Replicas of __consumer_offsets (fewer while fewer brokers are there).",
        default=3,
        minimum=1,
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes",
        "Segment size of __consumer_offsets.",
        default=100 << 20,
        unit="bytes",
        minimum=1,
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        "How long the offsets of an empty group are kept.",
        default=10_080,
        unit="min",
        minimum=1,
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        "Time between two looks for offsets to drop.",
        default=600_000,
        unit="ms",
        minimum=1,
    )
    offset_metadata_bytes_max: int = setting(
        "offset.metadata.max.bytes",
        "Largest note beside a committed offset.",
        default=4096,
        unit="bytes",
        minimum=0,
    )
    offset_commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms",
        "Longest wait for the replicas of a commit.",
        default=5_000,
        unit="ms",
        minimum=1,
    )
    transaction_topic_num_partitions: int = setting(
        "transaction.state.log.num.partitions",
        "Partitions of __transaction_state.",
        default=50,
        minimum=1,
    )
    transaction_topic_replication_factor: int = setting(
        "transaction.state.log.replication.factor",
        "Replicas of __transaction_state (fewer while fewer brokers are there).",
        default=3,
        minimum=1,
    )
    transaction_topic_min_isr: int = setting(
        "transaction.state.log.min.isr",
        "min.insync.replicas of __transaction_state.",
        default=2,
        minimum=1,
    )
    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        "Longest transaction that a producer may ask for.",
        default=900_000,
        unit="ms",
        minimum=1,
    )
    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        "How long an idle transactional id is remembered.",
        default=604_800_000,
        unit="ms",
        minimum=1,
    )

    # --- connections ---------------------------------------------------------------------------
    connections_max: int = setting(
        "max.connections",
        "Most client connections of the Kafka listener.",
        default=10_000,
        minimum=1,
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        "A Kafka connection idle for longer is closed.",
        default=600_000,
        unit="ms",
        minimum=1,
    )
    connections_max_per_ip: int = setting(
        "max.connections.per.ip",
        "Most client connections of the Kafka listeners from one address.",
        default=_INT32_MAX,
        minimum=1,
    )
    connections_max_reauth_ms: int = setting(
        "connections.max.reauth.ms",
        "How long a SASL login holds before the client must log in again; 0: for ever.",
        default=0,
        unit="ms",
        minimum=0,
    )
    socket_request_bytes_max: int = setting(
        "socket.request.max.bytes",
        "Largest request of the Kafka listener.",
        default=100 << 20,
        unit="bytes",
        minimum=1024,
    )

    @property
    def lease_ms(self) -> int:
        """From the send time of an answered heartbeat; 0.8 of the session covers clock drift."""
        return self.session_timeout_ms * 4 // 5

    def listener(self, name: str) -> ListenerAddress | None:
        """The listener of that name, None if this broker has none."""
        return next((one for one in self.listeners if one.name == name), None)

    def advertised(self, name: str, bound_port: int) -> ListenerAddress:
        """What others are told to dial for a listener that is bound to `bound_port`."""
        for one in self.advertised_listeners:
            if one.name == name:
                port = one.port or bound_port
                return ListenerAddress(name=name, host=one.host, port=port)
        own = self.listener(name)
        assert own is not None, f"no listener {name}"
        return ListenerAddress(name=name, host=own.host, port=bound_port)

    def check(self) -> None:
        """Raise SettingsError for what single settings cannot show."""
        names = {one.name for one in self.listeners}
        for needed in (GRPC, REPLICATION):
            if needed not in names:
                raise SettingsError(
                    f"listeners has no {needed} listener: add {needed}://127.0.0.1:0"
                )
        unknown = {n for n in names - {GRPC, REPLICATION} if not is_kafka_listener(n)}
        if unknown:
            raise SettingsError(
                f"listeners names {', '.join(sorted(unknown))}; there are GRPC, REPLICATION, KAFKA,"
                f" and any number more for Kafka's clients that begin with KAFKA_"
            )
        if strange := set(self.sasl_mechanisms) - set(_SASL_MECHANISMS):
            raise SettingsError(
                f"sasl.enabled.mechanisms names {', '.join(sorted(strange))}; there are"
                f" {', '.join(_SASL_MECHANISMS)}"
            )
        for name in filter(is_kafka_listener, names):
            self._check_protocol(name)
        for one in self.advertised_listeners:
            if one.name not in names:
                raise SettingsError(f"advertised.listeners names {one.name}, listeners does not")
        advertised = {one.name for one in self.advertised_listeners}
        for one in self.listeners:
            if one.host in ("", "0.0.0.0", "::") and one.name not in advertised:
                raise SettingsError(
                    f"listener {one.name} listens on every address, which nobody can dial: name"
                    f" the address others use in advertised.listeners"
                )
        if not self.controllers:
            raise SettingsError("controller.rpc.endpoints names no controller")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise SettingsError(
                "group.min.session.timeout.ms is greater than group.max.session.timeout.ms"
            )

    def security_protocol(self, name: str) -> str:
        """Of a Kafka listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        told = dict(self.security_protocols).get(name)
        if told is not None:
            return told
        base = "SSL" if self.ssl_certificate else "PLAINTEXT"
        return f"SASL_{base}" if self.sasl_mechanisms else base

    def _check_protocol(self, name: str) -> None:
        protocol = self.security_protocol(name)
        if protocol.endswith("SSL") and not self.ssl_certificate:
            raise SettingsError(f"listener {name} is {protocol}: set ssl.certificate.location")
        if not protocol.startswith("SASL"):
            return
        if not self.sasl_mechanisms:
            raise SettingsError(f"listener {name} is {protocol}: set sasl.enabled.mechanisms")
        if protocol == "SASL_PLAINTEXT" and self.sasl_mechanisms == ("PLAIN",):
            raise SettingsError(
                f"listener {name} is {protocol}, and PLAIN is offered under TLS only: use SASL_SSL,"
                f" or enable SCRAM-SHA-256"
            )

    def retention_ms(self) -> int:
        """Kafka's precedence: ms, then minutes, then hours."""
        if self.log_retention_ms != -2:
            return self.log_retention_ms
        if self.log_retention_minutes != -2:
            return -1 if self.log_retention_minutes < 0 else self.log_retention_minutes * 60_000
        return -1 if self.log_retention_hours < 0 else self.log_retention_hours * _HOUR_MS

    def log_defaults(self) -> LogConfig:
        """What topics get that set nothing themselves."""
        policies = {part.strip() for part in self.log_cleanup_policy.split(",")}
        return LogConfig(
            segment_bytes=self.log_segment_bytes,
            segment_ms=self.log_roll_ms if self.log_roll_ms > 0 else self.log_roll_hours * _HOUR_MS,
            segment_index_bytes=self.log_index_size_max_bytes,
            index_interval_bytes=self.log_index_interval_bytes,
            retention_ms=self.retention_ms(),
            retention_bytes=self.log_retention_bytes,
            max_message_bytes=self.message_max_bytes,
            cleanup_delete="delete" in policies,
            cleanup_compact="compact" in policies,
            min_cleanable_dirty_ratio=self.log_cleaner_min_cleanable_ratio,
            min_compaction_lag_ms=self.log_cleaner_min_compaction_lag_ms,
            max_compaction_lag_ms=self.log_cleaner_max_compaction_lag_ms,
            delete_retention_ms=self.log_cleaner_delete_retention_ms,
            file_delete_delay_ms=self.log_segment_delete_delay_ms,
            timestamp_kind=TimestampKind(self.log_message_timestamp_type),
            timestamp_before_max_ms=self.log_message_timestamp_before_max_ms,
            timestamp_after_max_ms=self.log_message_timestamp_after_max_ms,
            durability=Durability(self.log_durability_default),
        )


def settings_text(value: Any) -> str:
    """A setting's value as it would be written in a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(_element_text(one) for one in value)
    return str(value)


def _element_text(value: Any) -> str:
    if isinstance(value, ListenerAddress):
        return f"{value.name}://{value.authority}"
    if isinstance(value, tuple):
        return f"{value[0]}@{value[1]}:{value[2]}"
    return str(value)
