"""How to reach the cluster, from the options of a source or sink: addresses, TLS, client certificate.

Options carry the prefix `kafka.` (so that a query written for Kafka changes its format and address
only) or `odradek.`. Credentials on the gRPC listener are client certificates; PEM, by file or inline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from odradek.cluster.endpoints import parse_bootstrap
from odradek.transports.security import TlsOptions

PREFIXES: Final = ("odradek.", "kafka.")
_CA: Final = ("ssl.truststore.location", "ssl.ca.location")
_CERT: Final = ("ssl.keystore.location", "ssl.certificate.location")
_KEY: Final = ("ssl.key.location",)
_CA_INLINE: Final = ("ssl.truststore.certificates", "ssl.ca.pem")
_CERT_INLINE: Final = ("ssl.keystore.certificate.chain", "ssl.certificate.pem")
_KEY_INLINE: Final = ("ssl.keystore.key", "ssl.key.pem")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Where the brokers' gRPC listeners are, and who we are. Equal options share a connection."""

    bootstrap: tuple[str, ...]
    is_tls: bool = False
    ca: str | bytes | None = None
    cert: str | bytes | None = None
    key: str | bytes | None = None
    server_name: str | None = None

    def tls(self) -> TlsOptions | None:
        """For the transport; None: plaintext."""
        if not self.is_tls:
            return None
        return TlsOptions(ca=self.ca, cert=self.cert, key=self.key, server_name=self.server_name)


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options meant for the client, without prefix, in lower case; `odradek.` wins."""
    told: dict[str, str] = {}
    for prefix in reversed(PREFIXES):
        for name, value in options.items():
            lowered = name.lower()
            if lowered.startswith(prefix):
                told[lowered.removeprefix(prefix)] = value
    return told


def parse_connection(options: Mapping[str, str], *, role: str = "consumer") -> ConnectionOptions:
    """The connection that these options ask for.

    Raises:
        ValueError: the address is missing or malformed, or the security options make no sense.
    """
    told = client_options(options)
    bootstrap = told.get("bootstrap.servers")
    if bootstrap is None:
        raise ValueError(
            f"Option 'kafka.bootstrap.servers' must be specified for configuring Kafka {role}"
            " (here: HOST:PORT,... of the brokers' gRPC listeners)"
        )
    protocol = told.get("security.protocol", "").upper()
    sasl = sorted(name for name in told if name.startswith("sasl."))
    if protocol.startswith("SASL") or sasl:
        raise ValueError(
            f"Kafka option '{sasl[0] if sasl else 'security.protocol'}' is not supported: the gRPC"
            " listener authenticates clients by certificate; set 'kafka.security.protocol' to 'SSL'"
            " with 'kafka.ssl.certificate.location' and 'kafka.ssl.key.location' (PEM)"
        )
    if protocol not in ("", "PLAINTEXT", "SSL"):
        raise ValueError(f"Invalid value {protocol} for option 'kafka.security.protocol'")
    for store in ("ssl.truststore.type", "ssl.keystore.type"):
        if told.get(store, "PEM").upper() != "PEM":
            raise ValueError(f"Option 'kafka.{store}' must be PEM, got {told[store]}")
    ca = _credential(told, _CA, _CA_INLINE)
    cert = _credential(told, _CERT, _CERT_INLINE)
    key = _credential(told, _KEY, _KEY_INLINE)
    if key is None and isinstance(cert, str):
        key = cert  # Kafka's PEM key store: one file with the key and the chain
    if (cert is None) != (key is None):
        raise ValueError("a client certificate and its key go together: give both, or neither")
    return ConnectionOptions(
        bootstrap=parse_bootstrap(bootstrap),
        is_tls=protocol == "SSL" or (protocol == "" and (ca or cert) is not None),
        ca=ca,
        cert=cert,
        key=key,
        server_name=told.get("ssl.server.name"),
    )


def _credential(
    told: Mapping[str, str], locations: tuple[str, ...], inline: tuple[str, ...]
) -> str | bytes | None:
    for name in inline:
        if name in told:
            return told[name].encode()
    return next((told[name] for name in locations if name in told), None)
