"""When the certificates of a process end, for /metrics: whoever forgets to renew one is told before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class CertificateExpiry:
    """Reads PEM files again when they change, so that a renewed certificate shows at the next scrape."""

    def __init__(self, prefix: str, paths: Mapping[str, str | Path]) -> None:
        """`paths` by the setting that names them; empty ones are left out. `prefix` begins the metric's name."""
        self._prefix = prefix
        self._paths = {setting: Path(path) for setting, path in paths.items() if str(path)}
        self._known: dict[str, tuple[int, float]] = {}

    def families(self) -> Iterator[Any]:
        """One family of gauges, a sample a setting: the end of the file's certificate that ends first, in Unix time.

        A file that cannot be read, or holds no certificate, is told as 0: as one that ended long ago.
        """
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(
            self._prefix + "certificate_expiry_timestamp_seconds",
            "End of the certificate that a setting names; of several in its file, the first end.",
            labels=["setting"],
        )
        for setting, path in self._paths.items():
            family.add_metric([setting], self._end_s(setting, path))
        yield family

    def _end_s(self, setting: str, path: Path) -> float:
        try:
            stamp = path.stat().st_mtime_ns
            known = self._known.get(setting)
            if known is None or known[0] != stamp:
                known = self._known[setting] = stamp, first_end_s(path.read_bytes())
        except (OSError, ValueError):
            return 0.0
        return known[1]


def first_end_s(pem: bytes) -> float:
    """The end of the certificate that ends first, in Unix time. Raises ValueError where there is none."""
    from cryptography import x509  # only where certificates are

    return min(one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(pem))
