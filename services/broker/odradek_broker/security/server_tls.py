"""TLS of a listener: TLS 1.2 or newer, and a renewed certificate without a restart.

Certificate, key and CA are read again when one of the files is newer than at the last handshake.
New connections get the new certificate; those that are open keep what they have.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable

from odradek_runtime.logs import event_log
from odradek_runtime.tls import TlsFiles

_log = event_log(__name__)


def server_context(files: TlsFiles, *, requires_client: bool) -> ssl.SSLContext:
    """A context for servers; `requires_client`: clients must show a certificate of the CA."""
    current = _load(files, requires_client)
    current.sni_callback = _renewal(files, requires_client, current)
    return current


def _renewal(
    files: TlsFiles, requires_client: bool, first: ssl.SSLContext
) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]:
    loaded, stamp = first, _stamp(files)

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called within each handshake, whether or not the client names a host."""
        nonlocal loaded, stamp
        try:
            if (now := _stamp(files)) != stamp:
                loaded, stamp = _load(files, requires_client), now
                _log.info("Read a renewed certificate", certificate=str(files.certificate))
        except (OSError, ssl.SSLError) as error:  # half written: the one that there is still counts
            _log.warning("Could not read a renewed certificate", reason=str(error))
        if loaded is not first:
            connection.context = loaded

    return choose


def _load(files: TlsFiles, requires_client: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    if requires_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(files.ca)
    return context


def _stamp(files: TlsFiles) -> tuple[int, ...]:
    return tuple(os.stat(path).st_mtime_ns for path in (files.certificate, files.key, files.ca))
