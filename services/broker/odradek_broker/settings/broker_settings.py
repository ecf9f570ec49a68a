"""A broker's settings, under Kafka's names where Kafka has one: all of them, with what they imply."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from odradek_broker.settings.oauth_settings import OAuthSettings
from odradek_runtime.listeners import (
    ListenerAddress,
    host_port,
    parse_endpoints,
    parse_listeners,
)
from odradek_runtime.settings import SettingsError, setting

ENV_PREFIX: Final = "ODRADEK_BROKER_"
KAFKA: Final = "KAFKA"
GRPC: Final = "GRPC"
REPLICATION: Final = "REPLICATION"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_TLS_ONLY: Final = frozenset({"PLAIN", "OAUTHBEARER"})
_INT32_MAX: Final = (1 << 31) - 1


def _one_directory(text: str) -> Path:
    if "," in text:
        raise ValueError(
            "a list is not supported: one broker keeps one data directory; run one broker per disk"
        )
    if not text.strip():
        raise ValueError("a path is wanted")
    return Path(text.strip())


def is_kafka_listener(name: str) -> bool:
    """Whether clients speak Kafka's protocol on a listener of that name: KAFKA, KAFKA_EXTERNAL, ..."""
    return name == KAFKA or name.startswith(KAFKA + "_")


def is_grpc_listener(name: str) -> bool:
    """Whether clients speak gRPC on a listener of that name: GRPC, GRPC_EXTERNAL, ..."""
    return name == GRPC or name.startswith(GRPC + "_")


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
class BrokerSettings(OAuthSettings):
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
        "NAME://host:port of KAFKA, GRPC and REPLICATION, and of any number more that begin with KAFKA_"
        " or GRPC_; port 0: any free one.",
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
    ssl_client_auth: str = setting(
        "ssl.client.auth",
        "Whether clients of SSL listeners must show a certificate. requested: they need not, but those"
        " who do are who it says (Kafka's listeners; a gRPC listener can only demand one, or not ask).",
        default="none",
        choices=("none", "requested", "required"),
    )
    security_protocols: tuple[tuple[str, str], ...] = setting(
        "listener.security.protocol.map",
        "NAME:PROTOCOL of Kafka and gRPC listeners: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; what is"
        " not named follows from the certificate and sasl.enabled.mechanisms (a gRPC listener is SSL"
        " where ssl.client.auth=required).",
        default=(),
        parse=_parse_protocols,
    )
    sasl_mechanisms: tuple[str, ...] = setting(
        "sasl.enabled.mechanisms",
        "How clients of SASL listeners log in: SCRAM-SHA-256, SCRAM-SHA-512; PLAIN and OAUTHBEARER under TLS"
        " only.",
        default=(),
    )
    authorizer: str = setting(
        "authorizer.class.name",
        "acl: nobody may do what no entry allows; empty: everybody may do everything.",
        default="",
        choices=("", "acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    )
    delegation_principals: tuple[str, ...] = setting(
        "delegation.principals",
        "Principals of certificates that may speak for others over gRPC, as gateways do, separated by"
        " semicolons: what they may do is then what those others may.",
        default=(),
        parse=_parse_principals,
    )
    grpc_session_lifetime_ms: int = setting(
        "grpc.session.lifetime.ms",
        "How long a login over gRPC holds; connections.max.reauth.ms counts if it is shorter.",
        default=3_600_000,
        unit="ms",
        minimum=1_000,
    )
    super_users: tuple[str, ...] = setting(
        "super.users",
        "Principals that may do everything, as User:alice, separated by semicolons.",
        default=(),
        parse=_parse_principals,
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
        unknown = {
            n for n in names - {REPLICATION} if not (is_kafka_listener(n) or is_grpc_listener(n))
        }
        if unknown:
            raise SettingsError(
                f"listeners names {', '.join(sorted(unknown))}; there are GRPC, REPLICATION, KAFKA,"
                f" and any number more for clients that begin with KAFKA_ or GRPC_"
            )
        if strange := set(self.sasl_mechanisms) - set(_SASL_MECHANISMS):
            raise SettingsError(
                f"sasl.enabled.mechanisms names {', '.join(sorted(strange))}; there are"
                f" {', '.join(_SASL_MECHANISMS)}"
            )
        for name in names - {REPLICATION}:
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

    def authenticated_listeners(self) -> frozenset[str]:
        """Those where nobody does anything before he has shown who he is."""
        found = {REPLICATION}  # always mutual TLS, where there is TLS at all
        for one in self.listeners:
            if one.name != REPLICATION and (
                self.security_protocol(one.name).startswith("SASL")
                or self.demands_certificate(one.name)
            ):
                found.add(one.name)
        return frozenset(found)

    def demands_certificate(self, name: str) -> bool:
        """Whether clients of the listener must show a certificate."""
        return self.ssl_client_auth == "required" and self.security_protocol(name) == "SSL"

    def security_protocol(self, name: str) -> str:
        """Of a Kafka or gRPC listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        told = dict(self.security_protocols).get(name)
        if told is not None:
            return told
        base = "SSL" if self.ssl_certificate else "PLAINTEXT"
        if is_grpc_listener(name) and base == "SSL" and self.ssl_client_auth == "required":
            return base
        return f"SASL_{base}" if self.sasl_mechanisms else base

    @property
    def session_lifetime_ms(self) -> int:
        """How long a login over gRPC holds."""
        most_ms = self.connections_max_reauth_ms or self.grpc_session_lifetime_ms
        return min(most_ms, self.grpc_session_lifetime_ms)

    def mechanisms_of(self, name: str) -> tuple[str, ...]:
        """What a SASL listener offers."""
        is_encrypted = self.security_protocol(name).endswith("SSL")
        return tuple(one for one in self.sasl_mechanisms if is_encrypted or one not in _TLS_ONLY)

    def _check_protocol(self, name: str) -> None:
        protocol = self.security_protocol(name)
        if protocol.endswith("SSL") and not self.ssl_certificate:
            raise SettingsError(f"listener {name} is {protocol}: set ssl.certificate.location")
        if not protocol.startswith("SASL"):
            return
        if not self.sasl_mechanisms:
            raise SettingsError(f"listener {name} is {protocol}: set sasl.enabled.mechanisms")
        if not self.mechanisms_of(name):
            raise SettingsError(
                f"listener {name} is {protocol}, and {' and '.join(self.sasl_mechanisms)} is offered"
                f" under TLS only: use SASL_SSL, or enable SCRAM-SHA-256"
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
    if isinstance(value, tuple) and len(value) == 3:  # id, host, port
        return f"{value[0]}@{host_port(value[1], value[2])}"
    if isinstance(value, tuple):  # listener, protocol
        return ":".join(str(part) for part in value)
    return str(value)
