"""TLS of a process: certificate, key and CA, for servers and for channels to other processes.

The certificate of a broker or controller names that process in a SAN, `URI:odradek://broker/3` or `DNS:broker-3`, which
`peer_identity` reads from an authenticated call. The principal of a client's certificate is the whole DN of its
subject in the form of RFC 4514, as in Kafka by default. `principal_of_certificate` computes the principal for every
listener, so a certificate has the same principal over Kafka's protocol, gRPC and HTTP.

A renewed certificate needs no restart. gRPC servers and the Kafka and HTTP listeners reload changed files at the next
handshake. gRPC channels are replaced when the files have changed (`grpc_endpoints.InternalChannels`). Open connections
keep their certificate.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import grpc

from odradek_runtime.logs import event_log


class TlsRefused(RuntimeError):
    """The TLS settings cannot be used. The message names the setting, the file and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The PEM files of a process. `ca` has the certificates of the authorities that sign the peers' certificates."""

    certificate: Path
    key: Path
    ca: Path

    @staticmethod
    def from_paths(certificate: str, key: str, ca: str) -> TlsFiles | None:
        """Return the TLS files, or None if all paths are empty. Raises TlsRefused if only some paths are empty or a
        file cannot be used.
        """
        named = {
            "ssl.certificate.location": certificate,
            "ssl.key.location": key,
            "ssl.ca.location": ca,
        }
        missing = [name for name, path in named.items() if not path]
        if len(missing) == len(named):
            return None
        if missing:
            raise TlsRefused(
                f"TLS needs a certificate, a key and a CA: set {' and '.join(missing)}, too"
            )
        refuse_unusable_files(certificate=certificate, key=key, ca=ca)
        return TlsFiles(certificate=Path(certificate), key=Path(key), ca=Path(ca))

    def server_credentials(self, *, require_client: bool) -> grpc.ServerCredentials:
        """Return credentials for a gRPC server, which reload changed files at the next handshake.

        With `require_client`, peers must show a certificate that the CA signed (mTLS).
        """
        stamp = self.stamp()

        def current() -> grpc.ServerCertificateConfiguration | None:
            nonlocal stamp
            if (now := self.stamp()) == stamp:
                return None
            configuration = self._server_configuration()
            # If reading the files fails, the stamp stays the old one, so the next handshake reads them again.
            stamp = now
            return configuration

        return grpc.dynamic_ssl_server_credentials(
            self._server_configuration(),
            current,  # type: ignore[arg-type]  # None means no change; the stubs do not allow it
            require_client_authentication=require_client,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return credentials for a gRPC channel that shows this process's certificate and accepts peers whose
        certificate the CA signed.
        """
        return grpc.ssl_channel_credentials(
            root_certificates=self.ca.read_bytes(),
            private_key=self.key.read_bytes(),
            certificate_chain=self.certificate.read_bytes(),
        )

    def _server_configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(self.key.read_bytes(), self.certificate.read_bytes())],
            root_certificates=self.ca.read_bytes(),
        )

    def stamp(self) -> tuple[int, ...]:
        """Return a value that changes when any of the files is replaced. Raises OSError."""
        return tuple(os.stat(path).st_mtime_ns for path in (self.certificate, self.key, self.ca))


def refuse_unusable_files(*, certificate: str, key: str, ca: str, prefix: str = "ssl.") -> None:
    """Raise TlsRefused if one of these PEM files cannot be used. Empty paths are ignored.

    The error names the file's setting, which begins with `prefix`. Without this check, gRPC would only report later
    that it cannot open its port.
    """
    paths = {"certificate": certificate, "key": key, "ca": ca}
    named = {name: f"{prefix}{name}.location={path}" for name, path in paths.items() if path}
    for name, setting in named.items():
        try:
            with open(paths[name], "rb"):
                pass
        except OSError as error:
            raise TlsRefused(f"{setting} cannot be read: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Short keys are not refused here, because each listener decides which keys are too short.
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    if certificate and key:
        try:
            # Without the argument `password`, OpenSSL would prompt for the password of an encrypted key.
            context.load_cert_chain(certificate, key, password="")
        except ssl.SSLError as error:
            raise TlsRefused(
                f"{named['certificate']} and {named['key']} cannot be used ({_reason(error)}): they must"
                " be a PEM certificate and its PEM key without a password"
            ) from None
    if ca:
        try:
            context.load_verify_locations(ca)
        except ssl.SSLError as error:
            raise TlsRefused(
                f"{named['ca']} cannot be used ({_reason(error)}): the file must contain PEM certificates"
            ) from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "not PEM").replace("_", " ").lower()


def peer_identity(auth_context: Callable[[], Any]) -> tuple[str, int] | None:
    """Return ("broker" or "controller", id) from the peer's certificate. Return None if the peer showed no certificate
    or the certificate names no such process.

    `auth_context` is the method of a gRPC servicer context.
    """
    sans: list[bytes] = list(auth_context().get("x509_subject_alternative_name", ()))
    for san in sans:
        text = san.decode(errors="replace")
        if text.startswith("odradek://"):
            role, _, node = text.removeprefix("odradek://").partition("/")
        else:  # a DNS name such as broker-3, as `odradek tls issue broker-3` writes
            role, _, node = text.partition("-")
        if role in ("broker", "controller") and node.isascii() and node.isdigit():
            return role, int(node)
    return None


ANONYMOUS: Final = "User:ANONYMOUS"


@lru_cache(maxsize=1024)
def principal_of_certificate(certificate: bytes | None) -> str:
    """Return the principal of a PEM or DER certificate, such as `User:CN=alice,O=Acme`. Return ANONYMOUS if there is no
    certificate or its subject is empty.

    Raises:
        ValueError: the bytes are not a certificate.
    """
    if not certificate:
        return ANONYMOUS
    from cryptography import x509  # imported only where certificates are used

    is_pem = certificate.lstrip().startswith(b"-----")
    load = x509.load_pem_x509_certificate if is_pem else x509.load_der_x509_certificate
    subject = load(certificate).subject.rfc4514_string()
    return f"User:{subject}" if subject else ANONYMOUS


CLIENT_AUTH: Final = ("none", "requested", "required")
"""The values of `ssl.client.auth`. With `requested`, a client needs no certificate, but an invalid certificate is
refused.
"""
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_log = event_log(__name__)


def server_context(files: TlsFiles, *, client_auth: str) -> ssl.SSLContext:
    """Return a TLS context for servers that reloads changed files at the next handshake.

    `client_auth` is one of CLIENT_AUTH. A client's certificate is valid only if the CA signed it.
    """
    current = _load(files, client_auth)
    current.sni_callback = _renewal(files, client_auth, current)
    return current


def _renewal(
    files: TlsFiles, client_auth: str, first: ssl.SSLContext
) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]:
    loaded, stamp = first, files.stamp()

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Use a renewed certificate for this handshake. OpenSSL calls this function in each handshake, even if the
        client sends no host name (SNI).
        """
        nonlocal loaded, stamp
        try:
            if (now := files.stamp()) != stamp:
                loaded, stamp = _load(files, client_auth), now
                _log.info("Reloaded a renewed certificate", certificate=str(files.certificate))
        # The files may be half written, so the previous certificate stays in use.
        except (OSError, ssl.SSLError) as error:
            _log.warning(
                "Failed to reload a renewed certificate; the previous one stays in use",
                reason=str(error),
            )
        if loaded is not first:
            connection.context = loaded

    return choose


def _load(files: TlsFiles, client_auth: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    context.verify_mode = _VERIFY[client_auth]
    if client_auth != "none":
        context.load_verify_locations(files.ca)
    return context


class CertificateExpiry:
    """Metrics that show when the certificates of a process expire. A renewed file is read at the next scrape."""

    def __init__(self, prefix: str, paths: Mapping[str, str | Path]) -> None:
        """`paths` maps setting names to files; empty paths are ignored. The metric's name begins with `prefix`."""
        self._prefix = prefix
        self._paths = {setting: Path(path) for setting, path in paths.items() if str(path)}
        self._known: dict[str, tuple[int, float]] = {}

    def families(self) -> Iterator[Any]:
        """Yield one gauge family with a sample for each setting: the earliest expiry of the certificates in its file,
        in seconds of Unix time. The sample is 0, as if expired long ago, if the file cannot be read or has no
        certificate.
        """
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(
            self._prefix + "certificate_expiry_timestamp_seconds",
            "Unix time when the certificate in this setting's file expires; the earliest time if the file has several.",
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
    """Return the earliest expiry of PEM certificates, in seconds of Unix time. Raises ValueError if there is none."""
    from cryptography import x509  # imported only where certificates are used

    return min(c.not_valid_after_utc.timestamp() for c in x509.load_pem_x509_certificates(pem))
