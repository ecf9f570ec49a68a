"""The settings of a broker's listeners: where they are, who gets in, and how he shows who he is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_broker.settings.oauth_settings import OAuthSettings
from odradek_runtime.listeners import ListenerAddress, parse_listeners
from odradek_runtime.settings import SettingsError, setting

KAFKA: Final = "KAFKA"
GRPC: Final = "GRPC"
REPLICATION: Final = "REPLICATION"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_TLS_ONLY: Final = frozenset({"PLAIN", "OAUTHBEARER"})


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
class ListenerSettings(OAuthSettings):
    """Part of a broker's settings."""

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
        " semicolons: what they may do is then what those others may. Nobody speaks for super.users.",
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
    connections_max_reauth_ms: int = setting(
        "connections.max.reauth.ms",
        "How long a SASL login holds before the client must log in again; 0: for ever.",
        default=0,
        unit="ms",
        minimum=0,
    )
    super_users: tuple[str, ...] = setting(
        "super.users",
        "Principals that may do everything, as User:alice, separated by semicolons.",
        default=(),
        parse=_parse_principals,
    )

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

    def check_listeners(self) -> None:
        """Raise SettingsError for listeners that do not go together."""
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
