"""The SDK's errors for the failures that gRPC reports.

gRPC reports most failures of a connection by one status code, UNAVAILABLE, so the reason is found in its message. The
messages are those of grpcio 1.84; tests/unit/sdk/test_grpc_transport.py and tests/integration/sdk cause each of them.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from typing import Final

import grpc

from odradek.cluster.methods import WATCH_METADATA
from odradek.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    BrokerUnreachable,
    InvalidRequest,
    NameUnresolvable,
    NoActiveController,
    OdradekError,
    RequestTimedOut,
    ServerFault,
    ThrottlingQuotaExceeded,
    UnsupportedOperation,
    WrongListener,
)

RESOLVE_S_MAX: Final = 0.5
_FAREWELL: Final = re.compile(r".*Debug Text: (this is the listener .*)$", re.DOTALL)
"""Matches the message that a Kafka or HTTP listener sends to a gRPC client before it closes the connection. gRPC's
details may quote the message twice, one quotation within the other; the last one is matched."""
_WRONG_LISTENER: Final = "this is the listener "
"""The details of UNIMPLEMENTED begin with these words if the listener is only for processes of the cluster."""
_HTTP_1: Final = "http1.x server"
"""A part of gRPC's message if an HTTP/1 server responds."""
_NO_TLS: Final = "WRONG_VERSION_NUMBER"
"""A part of the TLS library's message if the server responds in another protocol than TLS."""
_NO_GRPC: Final = "missing selected ALPN"
"""A part of gRPC's message if a TLS server does not offer HTTP/2, for example a Kafka listener or a gateway."""
_CLOSED: Final = "Socket closed"
_FAILED_TO_CONNECT: Final = re.compile(
    r"failed to connect to all addresses; last error: [A-Z_]+: ipv[46]:(\S+): "
    r"(?:Failed to connect to remote host: )?(.+)"
)
"""Matches gRPC's message for a failed connection whose address and reason are known."""
_NO_RESPONSE: Final = ("before receiving SETTINGS frame", "ping timeout", "ping_timeout")
"""Parts of gRPC's messages if the operating system accepts or keeps a connection, but the process does not respond."""
_NO_RESPONSE_REASON: Final = (
    "it accepts connections, but does not respond; its process may be stopped or overloaded"
)
_CLOSED_REASON: Final = (
    "it closed the connection: it may require TLS or a client certificate, or it is starting or"
    " stopping"
)
_NO_TLS_HINT: Final = (
    "connect without TLS (no --ca, --cert, ssl.* properties or TlsOptions; security.protocol PLAINTEXT), or use the"
    " address of a listener with TLS"
)
_NO_LOGIN: Final = "this listener requires a login"
_LOGIN_HINT: Final = (
    "commands log in with --user NAME or sasl.username, programs with"
    " Client(credentials=SaslCredentials(...))"
)
_NO_CONTROLLER: Final = "no active controller"
"""How the details of UNAVAILABLE begin if a broker could not forward a call to a controller."""
_NOT_FOR_CLIENTS_HINT: Final = (
    "this may be the listener for replication or for other brokers: use the broker's gRPC address for clients (listener"
    " GRPC, port 9090 by default)"
)
_NO_FILES_REASON: Final = "this process has too many open files; raise its limit of open files"
_TOO_LARGE: Final = "message larger than max"
"""A part of gRPC's message if it refuses a message that is too large. A retry would not help."""


async def translated(
    code: grpc.StatusCode, details: str | None, endpoint: str, name: str
) -> OdradekError:
    """Return the SDK's error for a gRPC status. `name` is the called method."""
    details = (details or code.name.lower().replace("_", " ")).strip()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED):
        if code is grpc.StatusCode.UNAVAILABLE and not _has_files():
            return BrokerUnreachable(endpoint, _NO_FILES_REASON)
        if code is grpc.StatusCode.UNAVAILABLE and not await _resolves(endpoint):
            return NameUnresolvable(endpoint, "its host name cannot be resolved on this machine")
        if farewell := _FAREWELL.search(details):
            return WrongListener(endpoint, _without_unmatched_brackets(farewell[1]), hint="")
        if _HTTP_1 in details:
            reason = "this address belongs to an HTTP/1 server, such as a gateway or a metrics port"
            return WrongListener(endpoint, reason)
        if _NO_TLS in details:
            return WrongListener(endpoint, "the listener does not use TLS", hint=_NO_TLS_HINT)
        if _NO_GRPC in details:
            reason = (
                "this address uses TLS, but not gRPC: it may belong to a Kafka listener, to a gateway, or to a proxy"
                " without HTTP/2"
            )
            return WrongListener(endpoint, reason)
        if details.startswith(_NO_CONTROLLER):
            return NoActiveController(f"the broker at {endpoint} responds, but {details}")
        return BrokerUnreachable(endpoint, _connect_failure(endpoint, details))
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimedOut(f"the broker at {endpoint} did not respond to {name} in time")
    if code is grpc.StatusCode.UNAUTHENTICATED:
        hint = None
        if details.startswith(_NO_LOGIN):
            details, hint = _NO_LOGIN, _LOGIN_HINT
        return AuthenticationFailed(
            f"the broker at {endpoint} refused {name}: {details}", hint=hint
        )
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return AuthorizationFailed(f"the broker at {endpoint} refused {name}: {details}")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequest(f"the broker at {endpoint} refused {name}: {details}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE not in details:
        return ThrottlingQuotaExceeded(f"the broker at {endpoint} refused {name}: {details}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        if details.startswith(_WRONG_LISTENER):
            return WrongListener(endpoint, details, hint="")
        # Every broker serves WatchMetadata at its gRPC listener for clients, but not at its listener for replication.
        hint = _NOT_FOR_CLIENTS_HINT if name == WATCH_METADATA.name else None
        return UnsupportedOperation(f"the broker at {endpoint} does not support {name}", hint=hint)
    return ServerFault(f"{name} failed at the broker at {endpoint}: {code.name}: {details}")


def _without_unmatched_brackets(text: str) -> str:
    """Return the text without those closing brackets at its end whose opening bracket is missing."""
    while text.endswith(")") and text.count(")") > text.count("("):
        text = text[:-1]
    return text


def _connect_failure(endpoint: str, details: str) -> str:
    """Return the reason in gRPC's message about a failed connection.

    The resolved address is added if it differs from the endpoint, because a host name may resolve to a wrong address.
    """
    failed = _FAILED_TO_CONNECT.fullmatch(details)
    reason = details if failed is None else failed[2]
    if any(part in reason for part in _NO_RESPONSE):
        reason = _NO_RESPONSE_REASON
    if failed is not None and reason == _CLOSED:
        reason = _CLOSED_REASON
    return reason if failed is None or failed[1] == endpoint else f"{reason} ({failed[1]})"


def _has_files() -> bool:
    """Return whether this process can open another file. Called only after a connection failed.

    Without file descriptors the look-up of a host name fails, too, and its error would name the wrong cause.
    """
    try:
        socket.socket().close()
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True


async def _resolves(endpoint: str) -> bool:
    """Return whether the host name of an endpoint can be resolved. Called only after a connection failed.

    If the resolver is slow, the result is True, because the caller's error must not wait for the resolver.
    """
    host, _, port = endpoint.rpartition(":")
    try:
        async with asyncio.timeout(RESOLVE_S_MAX):
            await asyncio.get_running_loop().getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM
            )
    # RuntimeError: the interpreter is exiting and cannot start a thread.
    except (TimeoutError, RuntimeError):
        return True
    except OSError:
        return False
    return True
