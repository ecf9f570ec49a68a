"""Settings of the listeners: addresses, security protocols, authentication and authorization.

The settings of OAUTHBEARER have Kafka's names. In Kafka the location of the keys is a URL; in Odradek it is the
path of a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from odradek_broker.log_settings import LogSettings
from odradek_protocol.metadata.records import is_grpc_listener
from odradek_runtime.listeners import ListenerAddress, parse_listeners
from odradek_runtime.settings import SettingsError, setting

if TYPE_CHECKING:
    from odradek_runtime.jwt_tokens import TokenRules

KAFKA: Final = "KAFKA"
GRPC: Final = "GRPC"
REPLICATION: Final = "REPLICATION"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_TLS_ONLY: Final = frozenset({"PLAIN", "OAUTHBEARER"})


def is_kafka_listener(name: str) -> bool:
    """Return whether a listener with this name speaks Kafka's protocol: all but REPLICATION, GRPC and GRPC_..."""
    return name != REPLICATION and not is_grpc_listener(name)


def _parse_protocols(text: str) -> tuple[tuple[str, str], ...]:
    protocols = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = entry.partition(":")
        if not colon or protocol.strip().upper() not in _PROTOCOLS:
            raise ValueError(
                f"{entry!r} is not NAME:PROTOCOL with one of the protocols {', '.join(_PROTOCOLS)}"
            )
        protocols.append((name.strip().upper(), protocol.strip().upper()))
    return tuple(protocols)


def _parse_principals(text: str) -> tuple[str, ...]:
    principals = tuple(filter(None, (part.strip() for part in text.split(";"))))
    for principal in principals:
        if ":" not in principal:
            raise ValueError(f"{principal!r} is not TYPE:NAME, for example User:alice")
    return principals


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings(LogSettings):
    """Settings of the listeners, and of the authentication of their clients.

    The settings classes form one chain of inheritance, because a dataclass with slots cannot have several parents with
    fields. Therefore this class extends `LogSettings`, although the two are unrelated.
    """

    listeners: tuple[ListenerAddress, ...] = setting(
        "listeners",
        "Addresses to listen on, as NAME://host:port: GRPC and REPLICATION, and any number of others. Names that"
        " begin with GRPC_ speak gRPC, all others Kafka's protocol: KAFKA, KAFKA_..., PLAINTEXT, SSL, SASL_PLAINTEXT,"
        " SASL_SSL, and every name in listener.security.protocol.map. Port 0: any free port.",
        default=parse_listeners(
            "KAFKA://127.0.0.1:9092,GRPC://127.0.0.1:9090,REPLICATION://127.0.0.1:9093"
        ),
        parse=parse_listeners,
    )
    advertised_listeners: tuple[ListenerAddress, ...] = setting(
        "advertised.listeners",
        "Addresses that clients and other brokers connect to, as NAME://host:port. A listener that is not named"
        " here is advertised with the address in listeners.",
        default=(),
        parse=parse_listeners,
    )
    ssl_client_auth: str = setting(
        "ssl.client.auth",
        "Whether clients of SSL listeners must show a certificate. requested: a client may connect with or without a"
        " certificate, and the subject of a certificate is the client's principal. For gRPC listeners, requested means"
        " the same as none.",
        default="none",
        choices=("none", "requested", "required"),
    )
    security_protocols: tuple[tuple[str, str], ...] = setting(
        "listener.security.protocol.map",
        "Security protocols of Kafka and gRPC listeners, as NAME:PROTOCOL with PLAINTEXT, SSL, SASL_PLAINTEXT or"
        " SASL_SSL. A listener that is not named here and not called like a protocol uses TLS if there is a"
        " certificate, and SASL if sasl.enabled.mechanisms is set (a gRPC listener is SSL if"
        " ssl.client.auth=required).",
        default=(),
        parse=_parse_protocols,
    )
    sasl_mechanisms: tuple[str, ...] = setting(
        "sasl.enabled.mechanisms",
        "Mechanisms that clients of SASL listeners can log in with: SCRAM-SHA-256, SCRAM-SHA-512, and, on"
        " SASL_SSL listeners only, PLAIN and OAUTHBEARER.",
        default=(),
    )
    oauth_jwks: str = setting(
        "sasl.oauthbearer.jwks.location",
        "Path of a JWKS file with the keys that OAUTHBEARER tokens are signed with. It is read again when it"
        " changes. A URL is not supported.",
        default="",
    )
    oauth_issuer: str = setting(
        "sasl.oauthbearer.expected.issuer",
        "A token is accepted only if its issuer (iss) has this value.",
        default="",
    )
    oauth_audience: str = setting(
        "sasl.oauthbearer.expected.audience",
        "A token is accepted only if its audience (aud) contains this value.",
        default="",
    )
    oauth_claim: str = setting(
        "sasl.oauthbearer.sub.claim.name",
        "The claim of a token that contains the user's name.",
        default="sub",
    )
    oauth_skew_s: int = setting(
        "sasl.oauthbearer.clock.skew.seconds",
        "How far the clocks of the issuer and the broker may differ when a token's lifetime is checked.",
        default=30,
        unit="s",
        minimum=0,
    )
    authorizer: str = setting(
        "authorizer.class.name",
        "acl: a request is refused unless an ACL allows it. Empty: every client may do everything.",
        default="",
        choices=("", "acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    )
    delegation_principals: tuple[str, ...] = setting(
        "delegation.principals",
        "Principals that may send requests over gRPC in the name of other users, as gateways do, separated by"
        " semicolons. They must show certificates. Such a request has the rights of the other user. Requests"
        " in the name of one of super.users are refused.",
        default=(),
        parse=_parse_principals,
    )
    grpc_session_lifetime_ms: int = setting(
        "grpc.session.lifetime.ms",
        "How long a login over gRPC is valid. If connections.max.reauth.ms is shorter, that setting applies instead.",
        default=3_600_000,
        unit="ms",
        minimum=1_000,
    )
    connections_max_reauth_ms: int = setting(
        "connections.max.reauth.ms",
        "How long a SASL login is valid. A client that has not logged in again by then is disconnected. 0: no limit.",
        default=0,
        unit="ms",
        minimum=0,
    )
    super_users: tuple[str, ...] = setting(
        "super.users",
        "Principals that may do everything regardless of ACLs, separated by semicolons, for example User:alice.",
        default=(),
        parse=_parse_principals,
    )

    def listener(self, name: str) -> ListenerAddress | None:
        """Return the listener with this name, or None."""
        return next((listener for listener in self.listeners if listener.name == name), None)

    def advertised(self, name: str, bound_port: int) -> ListenerAddress:
        """Return the address that clients and other brokers use for a listener that is bound to `bound_port`."""
        for listener in self.advertised_listeners:
            if listener.name == name:
                port = listener.port or bound_port
                return ListenerAddress(name=name, host=listener.host, port=port)
        own = self.listener(name)
        assert own is not None, f"no listener {name}"
        return ListenerAddress(name=name, host=own.host, port=bound_port)

    def check_listeners(self) -> None:
        """Raise SettingsError for listener settings that are incomplete or contradict each other."""
        names = {listener.name for listener in self.listeners}
        for needed in (GRPC, REPLICATION):
            if needed not in names:
                raise SettingsError(
                    f"listeners has no {needed} listener: add {needed}://127.0.0.1:0"
                )
        mapped = {name for name, _ in self.security_protocols}
        unknown = {
            name
            for name in filter(is_kafka_listener, names)
            if name != KAFKA
            and not name.startswith(KAFKA + "_")
            and name not in mapped.union(_PROTOCOLS)
        }
        if unknown:
            raise SettingsError(
                f"listeners names {', '.join(sorted(unknown))}, which listener.security.protocol.map does not contain:"
                f" add {min(unknown)}:PLAINTEXT or another of {', '.join(_PROTOCOLS)} to that setting"
            )
        if unsupported := set(self.sasl_mechanisms) - set(_SASL_MECHANISMS):
            raise SettingsError(
                f"sasl.enabled.mechanisms names {', '.join(sorted(unsupported))}; the supported"
                f" mechanisms are {', '.join(_SASL_MECHANISMS)}"
            )
        for name in names - {REPLICATION}:
            self._check_protocol(name)
        for listener in self.advertised_listeners:
            if listener.name not in names:
                raise SettingsError(
                    f"advertised.listeners names {listener.name}, which is not in listeners: add it to listeners,"
                    " or remove it from advertised.listeners"
                )
        advertised = {listener.name for listener in self.advertised_listeners}
        for listener in self.listeners:
            if listener.host in ("", "0.0.0.0", "::") and listener.name not in advertised:
                raise SettingsError(
                    f"listener {listener.name} listens on all addresses, so clients need to know which one to"
                    f" use: add {listener.name}://HOST:PORT to advertised.listeners"
                )

    def authenticated_listeners(self) -> frozenset[str]:
        """Return the names of the listeners that refuse clients without authentication."""
        # The replication listener demands client certificates if the broker itself has one. If it has none,
        # `refuse_open_without_tls` refuses a replication listener that other machines can reach.
        authenticated = {REPLICATION}
        for listener in self.listeners:
            if listener.name != REPLICATION and (
                self.security_protocol(listener.name).startswith("SASL")
                or self.demands_certificate(listener.name)
            ):
                authenticated.add(listener.name)
        return frozenset(authenticated)

    def demands_certificate(self, name: str) -> bool:
        """Return whether clients of this listener must show a certificate."""
        return self.ssl_client_auth == "required" and self.security_protocol(name) == "SSL"

    def security_protocol(self, name: str) -> str:
        """Return the security protocol of a Kafka or gRPC listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        protocol = dict(self.security_protocols).get(name)
        if protocol is not None:
            return protocol
        if name in _PROTOCOLS:
            return name
        base = "SSL" if self.ssl_certificate else "PLAINTEXT"
        if is_grpc_listener(name) and base == "SSL" and self.ssl_client_auth == "required":
            return base
        return f"SASL_{base}" if self.sasl_mechanisms else base

    @property
    def session_lifetime_ms(self) -> int:
        """How long a login over gRPC is valid: `grpc.session.lifetime.ms`, or `connections.max.reauth.ms` if that is
        shorter.
        """
        reauth_ms = self.connections_max_reauth_ms or self.grpc_session_lifetime_ms
        return min(reauth_ms, self.grpc_session_lifetime_ms)

    def mechanisms_of(self, name: str) -> tuple[str, ...]:
        """Return the SASL mechanisms that a listener offers."""
        is_encrypted = self.security_protocol(name).endswith("SSL")
        return tuple(
            mechanism
            for mechanism in self.sasl_mechanisms
            if is_encrypted or mechanism not in _TLS_ONLY
        )

    def token_rules(self) -> TokenRules:
        """Return the rules by which tokens are checked.

        Raises:
            SettingsError: the keys, the issuer or the audience is not set.
        """
        from odradek_runtime.jwt_tokens import TokenRules

        for name, value in (
            ("sasl.oauthbearer.jwks.location", self.oauth_jwks),
            ("sasl.oauthbearer.expected.issuer", self.oauth_issuer),
            ("sasl.oauthbearer.expected.audience", self.oauth_audience),
        ):
            if not value:
                raise SettingsError(
                    f"sasl.enabled.mechanisms has OAUTHBEARER, which also needs {name}: set it"
                )
        return TokenRules(
            jwks=Path(self.oauth_jwks),
            issuer=self.oauth_issuer,
            audience=self.oauth_audience,
            principal_claim=self.oauth_claim,
            leeway_s=float(self.oauth_skew_s),
        )

    def _check_protocol(self, name: str) -> None:
        protocol = self.security_protocol(name)
        if protocol.endswith("SSL") and not self.ssl_certificate:
            raise SettingsError(
                f"listener {name} is {protocol}, which needs a certificate: set ssl.certificate.location"
            )
        if not protocol.startswith("SASL"):
            return
        if not self.sasl_mechanisms:
            raise SettingsError(
                f"listener {name} is {protocol}, which needs a mechanism: set sasl.enabled.mechanisms"
            )
        if not self.mechanisms_of(name):
            raise SettingsError(
                f"listener {name} is {protocol}, but {' and '.join(self.sasl_mechanisms)} may be used under"
                f" TLS only: make the listener SASL_SSL, or add SCRAM-SHA-256 to sasl.enabled.mechanisms"
            )
