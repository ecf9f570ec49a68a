"""The connection options of a source or sink: addresses, TLS, certificate or login.

Certificates are PEM, by file or inline. The name and password of a login are given in `sasl.jaas.config`,
as with Kafka's Java clients, or in `sasl.username` and `sasl.password`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from odradek.cluster.endpoints import parse_bootstrap
from odradek.cluster.security import MECHANISMS, SaslCredentials, TlsOptions
from odradek.spelling import did_you_mean
from pyspark_odradek.option_names import client_options

_CA: Final = ("ssl.truststore.location", "ssl.ca.location")
_CERT: Final = ("ssl.keystore.location", "ssl.certificate.location")
_KEY: Final = ("ssl.key.location",)
_CA_INLINE: Final = ("ssl.truststore.certificates", "ssl.ca.pem")
_CERT_INLINE: Final = ("ssl.keystore.certificate.chain", "ssl.certificate.pem")
_KEY_INLINE: Final = ("ssl.keystore.key", "ssl.key.pem")
_STORE_PASSWORDS: Final = ("ssl.truststore.password", "ssl.keystore.password", "ssl.key.password")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN: Final = frozenset(
    ["sasl.mechanism", "sasl.mechanisms", "sasl.jaas.config", "sasl.username", "sasl.password"]
)
_JAAS: Final = re.compile(r"\s*[\w.]*\.(?:Scram|Plain)LoginModule\s+required\b(.*);\s*", re.DOTALL)
_JAAS_OPTION: Final = re.compile(
    r"""\s+(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s"';]+))"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The addresses of the brokers' gRPC listeners, TLS options and credentials. Sources and sinks with equal options
    share a connection.
    """

    bootstrap: tuple[str, ...]
    is_tls: bool = False
    ca: str | bytes | None = None
    cert: str | bytes | None = None
    key: str | bytes | None = None
    server_name: str | None = None
    credentials: SaslCredentials | None = None

    def tls(self) -> TlsOptions | None:
        """Return the TLS options for the SDK, or None for a connection without TLS."""
        if not self.is_tls:
            return None
        return TlsOptions(ca=self.ca, cert=self.cert, key=self.key, server_name=self.server_name)


def parse_boolean(text: str) -> bool:
    """Parse true or false, in upper or lower case. Raises ValueError for any other text."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is not true or false")
    return text.lower() == "true"


def parse_connection(options: Mapping[str, str], *, role: str = "consumer") -> ConnectionOptions:
    """Return the checked connection options of a source or sink. `role` (consumer or producer) is for messages.

    Raises:
        ValueError: the address is missing or malformed, or the security options contradict each other.
    """
    client = client_options(options)
    bootstrap = client.get("bootstrap.servers")
    if bootstrap is None:
        raise ValueError(
            f"Option 'kafka.bootstrap.servers' must be specified for configuring Kafka {role}"
            " (here: HOST:PORT,... of the brokers' gRPC listeners)"
        )
    protocol = client.get("security.protocol", "").upper()
    if protocol not in ("", *_PROTOCOLS):
        raise ValueError(
            f"Invalid value {protocol} for option 'kafka.security.protocol': it must be one of"
            f" {', '.join(_PROTOCOLS)}{did_you_mean(protocol, _PROTOCOLS)}"
        )
    for store in ("ssl.truststore.type", "ssl.keystore.type"):
        if client.get(store, "PEM").upper() != "PEM":
            raise ValueError(f"Option 'kafka.{store}' must be PEM, got {client[store]}")
    for password in _STORE_PASSWORDS:
        if password in client:
            raise ValueError(
                f"Option 'kafka.{password}' is not supported: certificates and keys are PEM, without"
                " a password"
            )
    ca = _credential(client, _CA, _CA_INLINE)
    cert = _credential(client, _CERT, _CERT_INLINE)
    key = _credential(client, _KEY, _KEY_INLINE)
    if key is None and isinstance(cert, str):
        key = cert  # a PEM key store of Kafka is one file with the key and the certificate chain
    if (cert is None) != (key is None):
        raise ValueError("only one of client certificate and key is given: give both, or neither")
    return ConnectionOptions(
        bootstrap=parse_bootstrap(bootstrap),
        is_tls=protocol.endswith("SSL") or (protocol == "" and (ca or cert) is not None),
        ca=ca,
        cert=cert,
        key=key,
        server_name=client.get("ssl.server.name"),
        credentials=_login(client, protocol),
    )


def _login(client: Mapping[str, str], protocol: str) -> SaslCredentials | None:
    """Return name, password and mechanism of the SASL login, or None without a login. Error messages never contain the
    password.
    """
    sasl = {name for name in client if name.startswith("sasl.")}
    if protocol in ("PLAINTEXT", "SSL") or (not protocol and not sasl):
        return None  # Kafka's clients ignore the sasl. options in this case, too
    for name in sorted(sasl - _LOGIN):
        raise ValueError(f"Kafka option '{name}' is not supported")
    mechanism = client.get("sasl.mechanism", client.get("sasl.mechanisms", MECHANISMS[0])).upper()
    if mechanism not in MECHANISMS:
        raise ValueError(
            f"Invalid value {mechanism} for option 'kafka.sasl.mechanism': it must be one of"
            f" {', '.join(MECHANISMS)}{did_you_mean(mechanism, MECHANISMS)}"
        )
    given = {"username": client.get("sasl.username"), "password": client.get("sasl.password")}
    if (jaas := client.get("sasl.jaas.config")) is not None:
        given |= _jaas(jaas)
    username, password = given["username"], given["password"]
    if not username or not password:
        raise ValueError(
            "a login needs a name and a password: option 'kafka.sasl.jaas.config', e.g."
            " 'org.apache.kafka.common.security.scram.ScramLoginModule required"
            ' username="..." password="...";\', or kafka.sasl.username and kafka.sasl.password'
        )
    return SaslCredentials(username=username, password=password, mechanism=mechanism)


def _jaas(text: str) -> dict[str, str | None]:
    match = _JAAS.fullmatch(text)
    if match is None:
        raise ValueError(
            "Invalid value for option 'kafka.sasl.jaas.config': expected one entry of a"
            ' ScramLoginModule or PlainLoginModule, `... required username="..." password="...";`'
        )
    return {
        name: re.sub(r"\\(.)", r"\1", doubled) if doubled else single or bare
        for name, doubled, single, bare in _JAAS_OPTION.findall(match[1])
    }


def _credential(
    client: Mapping[str, str], locations: tuple[str, ...], inline: tuple[str, ...]
) -> str | bytes | None:
    for name in inline:
        if name in client:
            return client[name].encode()
    return next((client[name] for name in locations if name in client), None)
