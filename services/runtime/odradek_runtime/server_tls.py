"""TLS of a listener of our own (Kafka's, HTTP): TLS 1.2 or newer, and a renewed certificate without a restart.

Certificate, key and CA are read again when one of the files is newer than at the last handshake.
New connections get the new certificate; those that are open keep what they have.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import Final

from odradek_runtime.logs import event_log
from odradek_runtime.tls import TlsFiles

CLIENT_AUTH: Final = ("none", "requested", "required")
"""What `ssl.client.auth` may be: requested takes a client without a certificate, but not with a wrong one."""
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_log = event_log(__name__)


def server_context(files: TlsFiles, *, client_auth: str) -> ssl.SSLContext:
    """A context for servers; `client_auth` is one of CLIENT_AUTH, and counts certificates of the CA only."""
    current = _load(files, client_auth)
    current.sni_callback = _renewal(files, client_auth, current)
    return current


def _renewal(
    files: TlsFiles, client_auth: str, first: ssl.SSLContext
) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]:
    loaded, stamp = first, _stamp(files)

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called within each handshake, whether or not the client names a host."""
        nonlocal loaded, stamp
        try:
            if (now := _stamp(files)) != stamp:
                loaded, stamp = _load(files, client_auth), now
                _log.info("Read a renewed certificate", certificate=str(files.certificate))
        except (OSError, ssl.SSLError) as error:  # half written: the one that there is still counts
            _log.warning("Could not read a renewed certificate", reason=str(error))
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


def _stamp(files: TlsFiles) -> tuple[int, ...]:
    return tuple(os.stat(path).st_mtime_ns for path in (files.certificate, files.key, files.ca))
