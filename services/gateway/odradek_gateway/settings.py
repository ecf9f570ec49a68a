"""The settings of a gateway process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from odradek_runtime.jwt_tokens import ALGORITHMS
from odradek_runtime.listeners import is_loopback
from odradek_runtime.logs import LOG_FORMATS
from odradek_runtime.settings import SettingsError, setting
from odradek_runtime.tls import CLIENT_AUTH

BEARER: Final = "bearer"
BASIC: Final = "basic"
MTLS: Final = "mtls"
ENV_PREFIX: Final = "ODRADEK_GATEWAY_"
_METHODS: Final = (BEARER, BASIC, MTLS)
_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")


def _principals(text: str) -> tuple[str, ...]:
    principals = tuple(filter(None, (part.strip() for part in text.split(";"))))
    for principal in principals:
        if not principal.startswith("User:"):
            raise ValueError(f"{principal!r} does not have the form User:NAME")
    return principals


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """All settings of one gateway process."""

    bootstrap: str = setting(
        "bootstrap",
        "gRPC addresses of one or more brokers: host:port, separated by commas.",
        default="127.0.0.1:9090",
    )
    listen: str = setting(
        "listen",
        "Address on which the gateway accepts HTTP requests: host:port.",
        default="127.0.0.1:8082",
    )
    advertised_url: str = setting(
        "advertised.url",
        "URL at which other gateways reach this gateway. Empty: http:// or https:// with the address "
        "of `listen`.",
        default="",
    )
    advertised_tls_name: str = setting(
        "advertised.tls.name",
        "Name that the certificates of all gateways contain. Set it if the host of advertised.url changes,"
        " for example with a pod's IP address. Empty: a gateway's certificate must contain the host of its"
        " advertised.url.",
        default="",
    )
    http_allowed_hosts: tuple[str, ...] = setting(
        "http.allowed.hosts",
        "Host names that the Host header of a request may contain. Loopback names, IP addresses and the"
        " host of advertised.url are always allowed; * allows any name. With TLS any name is allowed,"
        " because the client checks the name against the certificate.",
        default=(),
    )
    http_allowed_origins: tuple[str, ...] = setting(
        "http.allowed.origins",
        "Origins of web sites (https://site.example) whose pages may send requests to the gateway from a"
        " browser; * allows any site. Programs other than browsers are not affected.",
        default=(),
    )
    log_format: str = setting(
        "log.format",
        "Format of the process's log: json writes one JSON object per line, text writes readable lines. auto uses"
        " text on a terminal and json elsewhere.",
        default="auto",
        choices=LOG_FORMATS,
    )
    log_level: str = setting(
        "log.level",
        "Log messages below this level are not written.",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
    )
    ssl_certificate: str = setting(
        "ssl.certificate.location",
        "PEM file with the certificate that the gateway presents to brokers.",
        default="",
    )
    ssl_key: str = setting(
        "ssl.key.location",
        "PEM file with the private key of ssl.certificate.location.",
        default="",
    )
    ssl_ca: str = setting(
        "ssl.ca.location",
        "PEM file with the certificate authority that signs the brokers' certificates.",
        default="",
    )
    v2_enable: bool = setting("api.v2.enable", "Serve Confluent's REST API v2.", default=True)
    v3_enable: bool = setting("api.v3.enable", "Serve Confluent's REST API v3.", default=True)
    body_bytes_max: int = setting(
        "request.body.bytes.max",
        "Largest body of a v2 produce request; a larger one gets status 413. The limit for bodies without records"
        " is 4 MiB.",
        default=64 << 20,
        unit="bytes",
        minimum=1_024,
    )
    bodies_bytes_max: int = setting(
        "request.bodies.bytes.max",
        "Limit for the bodies of all running requests together. A request that would exceed it gets status 429."
        " Streams of records do not count.",
        default=256 << 20,
        unit="bytes",
        minimum=1_024,
    )
    body_idle_timeout_ms: int = setting(
        "request.body.idle.timeout.ms",
        "A request gets status 408 if nothing of its body arrives for this long. Streams of records have their"
        " own limit, request.stream.idle.timeout.ms.",
        default=30_000,
        unit="ms",
        minimum=100,
    )
    stream_idle_timeout_ms: int = setting(
        "request.stream.idle.timeout.ms",
        "A client's stream of records (POST /v3/.../records) ends with error 408 if the client sends nothing"
        " for this long.",
        default=600_000,
        unit="ms",
        minimum=100,
    )
    record_bytes_max: int = setting(
        "record.bytes.max",
        "Largest JSON text of one record in a stream of records or in a body above 256 KiB, and largest body"
        " of a v3 batch (records:batch).",
        default=8 << 20,
        unit="bytes",
        minimum=1_024,
    )
    requests_max: int = setting(
        "requests.max",
        "Largest number of requests that run at once. Further requests get status 429.",
        default=2_000,
        minimum=1,
    )
    consumer_instance_timeout_ms: int = setting(
        "consumer.instance.timeout.ms",
        "A REST v2 consumer instance is closed if it gets no request for this long.",
        default=300_000,
        unit="ms",
        minimum=1_000,
    )
    consumer_request_timeout_ms_max: int = setting(
        "consumer.request.timeout.ms.max",
        "Longest time that a v2 read request may wait for records. A longer timeout in a request is reduced"
        " to this value.",
        default=60_000,
        unit="ms",
        minimum=0,
    )
    consumer_instances_max: int = setting(
        "consumer.instances.max",
        "Largest number of open consumer instances of one gateway. Each instance that was read in the last"
        " seconds needs a fetch stream; a broker allows 2,048 fetch streams per principal.",
        default=10_000,
        minimum=1,
    )
    consumer_prefetch_bytes_max: int = setting(
        "consumer.prefetch.bytes.max",
        "Maximum number of bytes of records that a consumer instance fetches ahead from each broker while a client"
        " reads from the instance.",
        default=1 << 20,
        unit="bytes",
        minimum=1 << 20,
        maximum=1 << 30,
    )
    shutdown_timeout_ms: int = setting(
        "shutdown.timeout.ms",
        "How long a stopping gateway waits for running requests before it ends them.",
        default=10_000,
        unit="ms",
        minimum=0,
    )

    http_ssl_certificate: str = setting(
        "http.ssl.certificate.location",
        "PEM file with the certificate of the HTTP port. Empty: the port has no TLS.",
        default="",
    )
    http_ssl_key: str = setting(
        "http.ssl.key.location",
        "PEM file with the private key of the HTTP port's certificate.",
        default="",
    )
    http_ssl_ca: str = setting(
        "http.ssl.ca.location",
        "PEM file with the certificate authority that signs the certificates of HTTP clients and "
        "of other gateways.",
        default="",
    )
    http_ssl_client_auth: str = setting(
        "http.ssl.client.auth",
        "Whether clients of the HTTP port must present a certificate.",
        default="none",
        choices=CLIENT_AUTH,
    )
    authentication_methods: tuple[str, ...] = setting(
        "authentication.methods",
        "Ways in which callers may authenticate, out of bearer, basic and mtls. Empty: callers are not"
        " authenticated, and all requests have the rights of the gateway.",
        default=(),
    )
    jwks: str = setting(
        "jwt.jwks.location",
        "JWKS file with the keys by which bearer tokens are verified.",
        default="",
    )
    jwt_issuer: str = setting(
        "jwt.issuer", "Issuer (claim iss) that a bearer token must have.", default=""
    )
    jwt_audience: str = setting(
        "jwt.audience", "Audience (claim aud) that a bearer token must have.", default=""
    )
    jwt_algorithms: tuple[str, ...] = setting(
        "jwt.algorithms",
        f"Signature algorithms that bearer tokens may use, out of {', '.join(ALGORITHMS)}.",
        default=("RS256", "ES256", "EdDSA"),
    )
    jwt_principal_claim: str = setting(
        "jwt.principal.claim", "Claim of a bearer token that names the user.", default="sub"
    )
    jwt_leeway_ms: int = setting(
        "jwt.leeway.ms",
        "How far the clocks of the token issuer and the gateway may differ.",
        default=30_000,
        unit="ms",
        minimum=0,
    )
    basic_mechanism: str = setting(
        "basic.sasl.mechanism",
        "SASL mechanism with which the gateway checks the name and password of basic authentication at a"
        " broker.",
        default="SCRAM-SHA-512",
        choices=_MECHANISMS,
    )
    basic_cache_ms: int = setting(
        "basic.cache.ms",
        "How long a successful login with name and password is cached. A deleted user can still log in for at"
        " most this long.",
        default=5_000,
        unit="ms",
        minimum=0,
        maximum=600_000,
    )
    delegation_principals: tuple[str, ...] = setting(
        "delegation.principals",
        "Principals of the certificates of the other gateways, separated by semicolons. A request that one of"
        " these gateways passes on acts with the rights of its original caller. Required with TLS and more than"
        " one gateway.",
        default=(),
        parse=_principals,
    )
    callers_max: int = setting(
        "callers.max",
        "Number of callers for which the gateway keeps streams to brokers. If there are more callers, the"
        " gateway closes the streams of those that were idle for the longest time.",
        default=1_000,
        minimum=1,
    )
    requests_per_second_max: int = setting(
        "requests.per.second.max",
        "Requests per second that one caller may send, with bursts of up to ten times as many. Further requests"
        " get status 429. 0: no limit.",
        default=0,
        minimum=0,
    )
    failed_logins_per_minute_max: int = setting(
        "failed.logins.per.minute.max",
        "Failed logins per minute that are allowed for one user from one address. Further logins get status"
        " 429, and their password is not checked.",
        default=60,
        minimum=1,
    )
    forwarded_allow_ips: str = setting(
        "forwarded.allow.ips",
        "Addresses of proxies whose X-Forwarded-For is trusted, separated by commas.",
        default="",
    )

    @property
    def host_and_port(self) -> tuple[str, int]:
        """The host and the port of `listen`; an IPv6 address has no brackets."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    def known_hosts(self) -> tuple[str, ...]:
        """Return the host names at which clients may reach this gateway; `*` means any name."""
        if self.http_ssl_certificate:
            return ("*",)
        own = (self.host_and_port[0], urlsplit(self.advertised_url).hostname or "")
        return (*self.http_allowed_hosts, *(name for name in own if name))

    def check(self, *, insecure: bool) -> None:
        """Raise SettingsError if settings contradict each other, or if the HTTP port would be open to other machines
        without TLS and authentication; `insecure` allows such a port.
        """
        self._check_authentication(
            shows_certificate=bool(self.ssl_ca and self.ssl_certificate and self.ssl_key)
        )
        if self.bodies_bytes_max < self.body_bytes_max:
            raise SettingsError(
                "request.bodies.bytes.max is below request.body.bytes.max, so the largest body could not be"
                " read: raise request.bodies.bytes.max or lower request.body.bytes.max"
            )
        self._refuse_open(self.host_and_port[0], insecure=insecure)

    def _check_authentication(self, *, shows_certificate: bool) -> None:
        """Raise SettingsError if an enabled authentication method lacks settings that it needs.

        `shows_certificate` says whether the gateway presents a TLS client certificate to the brokers.
        """
        methods = set(self.authentication_methods)
        if strange := methods - set(_METHODS):
            raise SettingsError(
                f"authentication.methods contains {', '.join(sorted(strange))}, but may only"
                f" contain {', '.join(_METHODS)}"
            )
        if strange := set(self.jwt_algorithms) - ALGORITHMS.keys():
            raise SettingsError(
                f"jwt.algorithms contains {', '.join(sorted(strange))}, but may only contain"
                f" {', '.join(ALGORITHMS)}"
            )
        if bool(self.http_ssl_certificate) != bool(self.http_ssl_key):
            raise SettingsError(
                "only one of http.ssl.certificate.location and http.ssl.key.location is set: set both"
            )
        if self.http_ssl_client_auth != "none" and not self.http_ssl_ca:
            raise SettingsError(
                "http.ssl.client.auth is set, but http.ssl.ca.location is not: set http.ssl.ca.location, too"
            )
        if self.http_ssl_client_auth != "none" and not self.http_ssl_certificate:
            raise SettingsError(
                "http.ssl.client.auth is set, but http.ssl.certificate.location is not: set"
                " http.ssl.certificate.location, too"
            )
        if MTLS in methods and self.http_ssl_client_auth == "none":
            raise SettingsError(
                "authentication.methods contains mtls, but http.ssl.client.auth is none:"
                " set it to requested or required"
            )
        if BEARER in methods:
            for name, value in (
                ("jwt.jwks.location", self.jwks),
                ("jwt.issuer", self.jwt_issuer),
                ("jwt.audience", self.jwt_audience),
            ):
                if not value:
                    raise SettingsError(
                        f"authentication.methods contains bearer, but {name} is not set: set {name}, too"
                    )
        if methods and not shows_certificate:
            raise SettingsError(
                "authentication.methods needs ssl.certificate.location, ssl.key.location and"
                " ssl.ca.location: set all three. Brokers let a gateway act for its callers only if the"
                " principal of its certificate is in the brokers' setting delegation.principals"
            )

    def _refuse_open(self, host: str, *, insecure: bool) -> None:
        """Raise SettingsError if the HTTP port is reachable from other machines without TLS or authentication."""
        if insecure or is_loopback(host):
            return
        for missing, name in (
            (not self.http_ssl_certificate, "http.ssl.certificate.location"),
            (not self.authentication_methods, "authentication.methods"),
        ):
            if missing:
                raise SettingsError(
                    f"the HTTP port on {host} is reachable from other machines: set {name}, listen on"
                    f" 127.0.0.1, or pass --insecure to accept that everybody may read and write"
                )

    @property
    def http_tls_paths(self) -> tuple[Path, Path, Path]:
        """The paths of the HTTP port's certificate, key and CA.

        Without http.ssl.ca.location the CA is the certificate's path. The TLS context reads the CA only if
        http.ssl.client.auth is not none, and then http.ssl.ca.location is set.
        """
        certificate = Path(self.http_ssl_certificate)
        ca = Path(self.http_ssl_ca) if self.http_ssl_ca else certificate
        return certificate, Path(self.http_ssl_key), ca
