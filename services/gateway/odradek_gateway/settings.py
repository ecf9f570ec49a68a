"""What a gateway can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from odradek_gateway.auth.auth_settings import AuthSettings
from odradek_runtime.settings import SettingsError, setting

ENV_PREFIX: Final = "ODRADEK_GATEWAY_"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings(AuthSettings):
    """All settings of one gateway process."""

    bootstrap: str = setting(
        "bootstrap",
        "gRPC addresses of one or more brokers, host:port,...",
        default="127.0.0.1:9090",
    )
    listen: str = setting("listen", "host:port of the HTTP listener.", default="127.0.0.1:8082")
    advertised_url: str = setting(
        "advertised.url", "How other gateways reach this one; empty: http(s)://LISTEN.", default=""
    )
    advertised_tls_name: str = setting(
        "advertised.tls.name",
        "Name that stands in every gateway's certificate, where advertised.url has an address that moves;"
        " empty: its host must stand there.",
        default="",
    )
    http_allowed_hosts: tuple[str, ...] = setting(
        "http.allowed.hosts",
        "Names, besides loopback's, IP addresses and the host of advertised.url, that requests may have in Host;"
        " *: any, as always with TLS, where the certificate vouches for the name.",
        default=(),
    )
    http_allowed_origins: tuple[str, ...] = setting(
        "http.allowed.origins",
        "Sites whose web pages may send requests (https://site.example); *: any. Programs are not affected.",
        default=(),
    )
    log_level: str = setting(
        "log.level",
        "Least level that is logged.",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
    )
    ssl_certificate: str = setting(
        "ssl.certificate.location", "Certificate shown to brokers, PEM.", default=""
    )
    ssl_key: str = setting("ssl.key.location", "Its key, PEM.", default="")
    ssl_ca: str = setting(
        "ssl.ca.location", "Authority that brokers' certificates come from, PEM.", default=""
    )
    v2_enable: bool = setting("api.v2.enable", "Serve REST v2.", default=True)
    v3_enable: bool = setting("api.v3.enable", "Serve REST v3.", default=True)
    body_bytes_max: int = setting(
        "request.body.bytes.max",
        "Largest body of a request, but for streamed records.",
        default=64 << 20,
        unit="bytes",
        minimum=1_024,
    )
    bodies_bytes_max: int = setting(
        "request.bodies.bytes.max",
        "Bodies of all requests at work together, but for streamed records; more are answered 429.",
        default=256 << 20,
        unit="bytes",
        minimum=1_024,
    )
    body_idle_timeout_ms: int = setting(
        "request.body.idle.timeout.ms",
        "A body of which nothing came for so long is answered 408, but for streamed records.",
        default=30_000,
        unit="ms",
        minimum=100,
    )
    stream_idle_timeout_ms: int = setting(
        "request.stream.idle.timeout.ms",
        "A stream of records on which nothing came for so long is ended with 408.",
        default=600_000,
        unit="ms",
        minimum=100,
    )
    record_bytes_max: int = setting(
        "record.bytes.max",
        "Largest JSON of one record in a stream of records.",
        default=8 << 20,
        unit="bytes",
        minimum=1_024,
    )
    requests_max: int = setting(
        "requests.max", "Requests at work at once; more are answered 429.", default=2_000, minimum=1
    )
    consumer_instance_timeout_ms: int = setting(
        "consumer.instance.timeout.ms",
        "A consumer instance that nobody asks for so long is closed.",
        default=300_000,
        unit="ms",
        minimum=1_000,
    )
    consumer_request_timeout_ms_max: int = setting(
        "consumer.request.timeout.ms.max",
        "Longest that a request for records may wait for them, whatever it asks for.",
        default=60_000,
        unit="ms",
        minimum=0,
    )
    consumer_instances_max: int = setting(
        "consumer.instances.max",
        "Open consumer instances of one gateway.",
        default=10_000,
        minimum=1,
    )
    consumer_prefetch_bytes_max: int = setting(
        "consumer.prefetch.bytes.max",
        "Records that an instance fetches ahead, from each broker, while it is read; none while it is not.",
        default=1 << 20,
        unit="bytes",
        minimum=1 << 20,
        maximum=1 << 30,
    )
    shutdown_timeout_ms: int = setting(
        "shutdown.timeout.ms",
        "How long requests at work may take to end when the gateway stops.",
        default=10_000,
        unit="ms",
        minimum=0,
    )

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Of the HTTP listener."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    def known_hosts(self) -> tuple[str, ...]:
        """Names by which this gateway is reached; `*`: any."""
        if self.http_ssl_certificate:
            return ("*",)
        own = (self.host_and_port[0], urlsplit(self.advertised_url).hostname or "")
        return (*self.http_allowed_hosts, *(name for name in own if name))

    def check(self, *, insecure: bool) -> None:
        """Raise SettingsError for what single settings cannot show."""
        self.check_auth(
            shows_certificate=bool(self.ssl_ca and self.ssl_certificate and self.ssl_key)
        )
        if self.bodies_bytes_max < self.body_bytes_max:
            raise SettingsError(
                "request.bodies.bytes.max is below request.body.bytes.max: no such body could be read"
            )
        self.refuse_open(self.host_and_port[0], insecure=insecure)
