"""What every node of the cluster can be told, broker or controller: what it shows, logs and is known by."""

from __future__ import annotations

from dataclasses import dataclass

from odradek_runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Metrics, probes, the process's own log, certificates.

    `given` has the names of the settings that were given at the start, be it with their default.
    """

    given: frozenset[str] = frozenset()
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
    health_port: int = setting(
        "health.port",
        "Port of gRPC health without TLS, on metrics.host, for probes; 0: any free one, -1: none.",
        default=-1,
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
