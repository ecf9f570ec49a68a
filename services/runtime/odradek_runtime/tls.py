"""TLS material of a process: certificate, key and CA, for servers and channels alike.

Identity: a node's certificate names it in a SAN, `URI:odradek://broker/3` or `DNS:broker-3`;
`peer_identity` reads it from an authenticated call. Files are read at each (re)load, so a renewed
certificate needs no restart: gRPC servers ask again at each handshake, channels are replaced
(`internal_channels.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc


class TlsRefused(RuntimeError):
    """The TLS settings do not work; the message names the file and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. `ca` signs the peers' certificates."""

    certificate: Path
    key: Path
    ca: Path

    @staticmethod
    def from_paths(certificate: str, key: str, ca: str) -> TlsFiles | None:
        """None when none is set. Raises TlsRefused when only some are, or one cannot be read."""
        named = {
            "ssl.certificate.location": certificate,
            "ssl.key.location": key,
            "ssl.ca.location": ca,
        }
        missing = [name for name, path in named.items() if not path]
        if len(missing) == len(named):
            return None
        if missing:
            raise TlsRefused(f"TLS needs three files, {', '.join(missing)} is not set")
        for name, path in named.items():
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                raise TlsRefused(f"{name}={path} cannot be read: {error.strerror}") from None
        return TlsFiles(certificate=Path(certificate), key=Path(key), ca=Path(ca))

    def server_credentials(self, *, require_client: bool) -> grpc.ServerCredentials:
        """For a server; with `require_client` peers must show a certificate of the CA (mTLS)."""
        stamp = self.stamp()

        def current() -> grpc.ServerCertificateConfiguration | None:
            nonlocal stamp
            if (now := self.stamp()) == stamp:
                return None
            configuration = self._server_configuration()
            stamp = now  # only now: files that could not be read are read at the next handshake
            return configuration

        return grpc.dynamic_ssl_server_credentials(
            self._server_configuration(),
            current,  # type: ignore[arg-type]  # None means "as before"; the stubs lack it
            require_client_authentication=require_client,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a channel to a peer of the same CA, showing our own certificate."""
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
        """Another one when any of the files was replaced. Raises OSError."""
        return tuple(os.stat(path).st_mtime_ns for path in (self.certificate, self.key, self.ca))


def peer_identity(auth_context: Callable[[], Any]) -> tuple[str, int] | None:
    """("broker" or "controller", id) that the peer's certificate names; None without one.

    `auth_context` is the method of a gRPC servicer context.
    """
    sans: list[bytes] = list(auth_context().get("x509_subject_alternative_name", ()))
    for san in sans:
        text = san.decode(errors="replace")
        if text.startswith("odradek://"):
            role, _, node = text.removeprefix("odradek://").partition("/")
        else:  # a DNS name, as `odradek tls issue broker-3` makes it
            role, _, node = text.partition("-")
        if role in ("broker", "controller") and node.isascii() and node.isdigit():
            return role, int(node)
    return None
