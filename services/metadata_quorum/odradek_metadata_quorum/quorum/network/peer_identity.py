"""Who is at the other end: TLS 1.3 with certificates of the cluster's own CA, both ways.

A controller's certificate names it in a SAN, `DNS:controller-<id>` or `URI:odradek://controller/<id>`;
the common name is never looked at, nor is the host name: addresses move, identities do not. A
dialler reads the files for each connection, the listener when they have changed, so a renewed
certificate needs no restart.
"""

from __future__ import annotations

import ssl
from typing import Any

from odradek_metadata_quorum.quorum.settings import QuorumTls


class ServerIdentity:
    """The listener's TLS context: peers must show a certificate of the CA."""

    def __init__(self, tls: QuorumTls) -> None:
        """Raises OSError, ssl.SSLError."""
        self._tls = tls
        self._stamp = self._read_stamp()
        self.context = _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls)

    def reload_if_renewed(self) -> None:
        """For the connections from now on; raises OSError, ssl.SSLError, the old one then stays."""
        stamp = self._read_stamp()
        if stamp != self._stamp:
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._tls)  # a half-written pair: not us
            _load(self.context, self._tls)
            self._stamp = stamp

    def _read_stamp(self) -> tuple[int, ...]:
        tls = self._tls
        paths = (tls.certificate_path, tls.key_path, tls.ca_path)
        return tuple(path.stat().st_mtime_ns for path in paths)


def client_context(tls: QuorumTls) -> ssl.SSLContext:
    """For dialling. The identity is checked by `certified_id`, not by host name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return _load(context, tls)


def _load(context: ssl.SSLContext, tls: QuorumTls) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tls.certificate_path, tls.key_path)
    context.load_verify_locations(tls.ca_path)
    return context


def certified_ids(certificate: dict[str, Any] | None) -> frozenset[int]:
    """The controller ids that a verified peer certificate names; empty without any."""
    ids = set()
    for kind, value in (certificate or {}).get("subjectAltName", ()):
        prefix = {"DNS": "controller-", "URI": "odradek://controller/"}.get(kind)
        if prefix is not None and value.startswith(prefix):
            digits = value[len(prefix) :]
            if digits.isascii() and digits.isdigit():
                ids.add(int(digits))
    return frozenset(ids)
