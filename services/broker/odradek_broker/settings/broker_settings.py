"""A broker's settings, under Kafka's names where Kafka has one: all of them, with what they imply."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odradek_broker.settings.listener_settings import ListenerSettings
from odradek_runtime.listeners import parse_endpoints
from odradek_runtime.settings import SettingsError, setting

ENV_PREFIX: Final = "ODRADEK_BROKER_"
_INT32_MAX: Final = (1 << 31) - 1


def _one_directory(text: str) -> Path:
    if "," in text:
        raise ValueError(
            "a list is not supported: one broker keeps one data directory; run one broker per disk"
        )
    if not text.strip():
        raise ValueError("a path is wanted")
    return Path(text.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(ListenerSettings):
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
    rack: str = setting("broker.rack", "Rack or zone of this broker.", default="")

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
    follower_replication_throttled_rate: int = setting(
        "follower.replication.throttled.rate",
        "What this broker copies at most for replicas that are far behind, all together, so that live"
        " ones are not crowded out; those near the end are not counted. 0: no limit.",
        default=0,
        unit="bytes/s",
        minimum=0,
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
    acks_all_without_controller: bool = setting(
        "acks.all.without.controller.enable",
        "Answer acks=all also when no controller has answered for as long as the lease, if another"
        " in-sync replica has confirmed it; false: refuse it then. Reads and acks=1 always need the"
        " lease.",
        default=True,
    )
    controlled_shutdown_timeout_ms: int = setting(
        "controlled.shutdown.timeout.ms",
        "Longest hand-over of leaderships at a stop; then it ends without it, and no clean marker.",
        default=5_000,
        unit="ms",
        minimum=100,
    )
    readiness_catch_up_timeout_ms: int = setting(
        "readiness.catch.up.timeout.ms",
        "How long after its start a broker may call itself not ready because a replica of its is not"
        " in sync yet: a rolling restart waits for that.",
        default=300_000,
        unit="ms",
        minimum=0,
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

    # --- connections ---------------------------------------------------------------------------
    connections_max: int = setting(
        "max.connections",
        "Most connections of a Kafka or gRPC listener; gRPC listeners together take at most a quarter of the"
        " file descriptors.",
        default=10_000,
        minimum=1,
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        "A Kafka connection idle for longer is closed; a gRPC connection without a call after 120 s at most.",
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
    queued_request_bytes_max: int = setting(
        "queued.max.request.bytes",
        "Bytes of large requests that are still arriving, on all Kafka connections together; beyond"
        " it none of them is read further until others are done or given up.",
        default=256 << 20,
        unit="bytes",
        minimum=1 << 20,
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

    def check(self) -> None:
        """Raise SettingsError for what single settings cannot show."""
        self.check_listeners()
        if not self.controllers:
            raise SettingsError("controller.rpc.endpoints names no controller")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise SettingsError(
                "group.min.session.timeout.ms is greater than group.max.session.timeout.ms"
            )
