"""The HTTP server: uvicorn with limits for each connection. It reloads renewed TLS certificates, and gives the
application the client's certificate.

A connection is closed if

- its TLS handshake takes longer than HANDSHAKE_S_MAX;
- the head of its first request (request line and headers) does not arrive within HEAD_S_MAX, or the head of a later
  request within HEAD_S_MAX after its first byte (slowloris);
- the client reads nothing of a response for STALLED_S_MAX.

A head above HEAD_BYTES_MAX gets status 431. When the server stops, idle connections are closed at once, and all others
after their current response. If a client does not end its TLS session within GOODBYE_S_MAX, its connection is aborted:
clients with a connection pool do not send close_notify.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, cast

import httptools
import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from odradek_gateway.auth.authentication import CERTIFICATE
from odradek_gateway.auth.callers import HEALTH_PATHS
from odradek_gateway.errors import error_body
from odradek_gateway.settings import GatewaySettings
from odradek_runtime.budget.refusals import RefusalLines
from odradek_runtime.listeners import GRPC, HTTP, KAFKA, TLS, farewell, recognize
from odradek_runtime.logs import event_log
from odradek_runtime.tls import TlsFiles, server_context
from odradek_runtime.tls_server import TlsServer

HEAD_BYTES_MAX: Final = 64 << 10
HEAD_S_MAX: Final = 10.0
HANDSHAKE_S_MAX: Final = 5.0
STALLED_S_MAX: Final = 60.0
GOODBYE_S_MAX: Final = 0.5


_PROBES: Final = frozenset(path.encode() for path in HEALTH_PATHS)


_ADVICE: Final = {
    GRPC: "the SDK and `odradek` use the gRPC address of a broker (listener GRPC, port 9090 by default)",
    KAFKA: "Kafka clients use the address of a broker's Kafka listener (port 9092 by default)",
    TLS: "it speaks HTTP without TLS",
}
_HERE: Final = "this is the listener HTTP of a gateway"
_log = event_log(__name__)
_audit = event_log("odradek_gateway.audit")


def _advice_with_tls(protocol: str) -> str:
    """Return the text that is sent to a client of this protocol if it connects without TLS to a port with TLS."""
    use_https = "it speaks HTTPS: use https:// instead of http://"
    return f"{_HERE}: {use_https if protocol == HTTP else _ADVICE[protocol]}"


class _HeadTooLarge(Exception):
    """Raised in a callback of the parser to stop parsing, because a request's head is larger than HEAD_BYTES_MAX."""


class _ConnectRefused(Exception):
    """Raised in a callback of the parser to stop parsing, because the method is CONNECT: a gateway is no proxy."""


class _Parser:
    """A parser of the requests of one connection that ignores Upgrade, as a server may (RFC 9110, section 7.8).

    After a head with `Connection: Upgrade`, httptools expects another protocol: it does not report the request's body,
    and parses its bytes as the next request. Java's HttpClient sends `Upgrade: h2c` with its first request. Such a head
    is therefore parsed again without Upgrade, by a new parser. The first parse has no effect, because the protocol
    ignores the request while `should_upgrade` is true.
    """

    def __init__(self, protocol: _Protocol) -> None:
        self._protocol = protocol
        self._begin()

    def _begin(self) -> None:
        parser = httptools.HttpRequestParser(self._protocol)
        # As in uvicorn: bytes after a request with `Connection: close` are not an error.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._parser = parser
        self.get_http_version = parser.get_http_version
        self.get_method = parser.get_method
        self.should_keep_alive = parser.should_keep_alive
        self.should_upgrade = parser.should_upgrade

    def feed_data(self, data: bytes) -> None:
        """Parse the next bytes of the connection. Raises HttpParserError."""
        rest = memoryview(data)
        while True:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
            head = self._head_without_upgrade()
            self._begin()
            self._parser.feed_data(head)

    def _head_without_upgrade(self) -> bytes:
        url, headers = self._protocol.url, self._protocol.headers
        lines = [b"%s %s HTTP/%s" % (self.get_method(), url, self.get_http_version().encode())]
        lines += [b"%s: %s" % header for header in headers if header[0] != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))


class _Protocol(HttpToolsProtocol):
    """One connection of a client. It counts the bytes of each request's headers, because uvicorn's parser does not
    limit them.
    """

    def connection_made(self, transport: Any) -> None:
        """Store the client's certificate, and start the timer for the first request."""
        super().connection_made(transport)
        self.parser: Any = _Parser(self)
        tls = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        self._is_new = True  # whether no bytes were received yet
        self._head_bytes = 0  # bytes of this request's headers and trailers
        self._unparsed_bytes = 0  # bytes since the parser last reported an element
        self._is_in_head = False
        self._is_last_response = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._expect_head()
        self.app: Any = _Introduced(self.app, certificate)

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S_MAX, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:  # uvicorn reads this request only after the response to the connection's previous request
            self._expect_head()

    def _head_ends(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def data_received(self, data: bytes) -> None:
        """Parse the bytes of requests, within the limit for heads."""
        if self._is_new:
            self._is_new = False
            if self._is_foreign(data[:4]):
                return
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._is_in_head:  # rarely the case, because most heads arrive in one piece
            self._expect_head()
        if self._unparsed_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse_head()

    def _is_foreign(self, first: bytes) -> bool:
        """Return whether the client speaks another protocol than HTTP. If so, send the client an explanation in its
        protocol, and close the connection.
        """
        protocol = recognize(first)
        if protocol is None or protocol == HTTP:
            return False
        advice = f"{_HERE}: {_ADVICE[protocol]}"
        peer = self.transport.get_extra_info("peername")
        _log.info(
            "Closed connection",
            reason=f"a {protocol} client: {advice}",
            host=str(peer[0]) if peer else "",
        )
        self.transport.write(farewell(protocol, advice))
        self.transport.close()
        return True

    def on_message_begin(self) -> None:
        """Begin to count the bytes of a request's headers."""
        self._head_bytes = self._unparsed_bytes = 0
        self._is_in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count the bytes of a part of the URL, which belong to the request's head."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes of a complete header."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size_bytes: int) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += size_bytes
        if self._head_bytes > HEAD_BYTES_MAX:
            raise _HeadTooLarge

    def on_headers_complete(self) -> None:
        """Start to handle the request.

        The limit of connections does not apply to health probes: a refused probe would cause a restart.
        """
        self._unparsed_bytes = 0
        if self.parser.get_method() == b"CONNECT":
            raise _ConnectRefused
        if self.parser.should_upgrade():
            return
        self._is_in_head = False
        self._head_ends()
        is_probe = self.url.partition(b"?")[0] in _PROBES
        self.limit_concurrency = None if is_probe else self.config.limit_concurrency
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Reset the count of unparsed bytes, and let uvicorn handle a part of the body."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Let uvicorn end the request, unless its head will be parsed again."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Respond 431 if the head is too large, and 400 to any other bytes that the parser refuses."""
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def _refuse_head(self) -> None:
        words = f"the head of the request is larger than {HEAD_BYTES_MAX} bytes"
        body = orjson.dumps(error_body(431, words))
        head = "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()

    def pause_writing(self) -> None:
        """Start the timer that closes the connection if the client does not read its response."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Stop the timer that `pause_writing` started, because the client reads again."""
        self._stop_stall_timer()
        super().resume_writing()

    def _expect_reading(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(STALLED_S_MAX, self._check_reading, unread_bytes)

    def _check_reading(self, unread_bytes: int) -> None:
        if self.transport.get_write_buffer_size() < unread_bytes:
            self._expect_reading()
        else:
            self.transport.abort()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def shutdown(self) -> None:
        """Close the connection after the current response."""
        self._is_last_response = True
        super().shutdown()
        self._close_soon()

    def on_response_complete(self) -> None:
        """Close the connection if this was its last response."""
        super().on_response_complete()
        if self._is_last_response:
            self._close_soon()

    def _close_soon(self) -> None:
        if self.transport.is_closing():
            self.loop.call_later(GOODBYE_S_MAX, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._head_ends()
        self._stop_stall_timer()
        super().connection_lost(exc)


class _Introduced:
    """ASGI middleware that puts the client certificate of its connection into the scope of each request."""

    __slots__ = ("_app", "_certificate")

    def __init__(self, app: Callable[..., Awaitable[None]], certificate: bytes | None) -> None:
        self._app = app
        self._certificate = certificate

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if self._certificate is not None:
            scope[CERTIFICATE] = self._certificate
        await self._app(scope, receive, send)


class _Config(uvicorn.Config):
    """uvicorn's configuration with our TLS context, which reloads renewed certificates."""

    def __init__(self, app: Any, *, settings: GatewaySettings, **options: Any) -> None:
        super().__init__(app, http=_Protocol, **options)
        self._settings = settings

    def load(self) -> None:
        """Load the configuration. Raises OSError or ssl.SSLError for certificate files that cannot be used."""
        super().load()
        if self._settings.http_ssl_certificate:
            certificate, key, ca = self._settings.http_tls_paths
            self.ssl = server_context(
                TlsFiles(certificate=certificate, key=key, ca=ca),
                client_auth=self._settings.http_ssl_client_auth,
            )


class HttpServer(uvicorn.Server):
    """uvicorn's server without its listening socket and signal handlers: GatewayProcess has both."""

    def __init__(self, app: Any, settings: GatewaySettings, *, connections_max: int) -> None:
        self._refusals = RefusalLines()
        super().__init__(
            _Config(
                app,
                settings=settings,
                log_config=None,
                access_log=False,
                ws="none",
                lifespan="off",
                server_header=False,
                proxy_headers=bool(settings.forwarded_allow_ips),
                forwarded_allow_ips=settings.forwarded_allow_ips or None,
                limit_concurrency=connections_max,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=settings.shutdown_timeout_ms // 1000,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen as uvicorn does, but with HANDSHAKE_S_MAX for TLS handshakes instead of the event loop's 60 s."""
        assert sockets is not None, "the gateway process opens the listening socket"
        config, loop = self.config, asyncio.get_running_loop()
        await self.lifespan.startup()

        def new_connection() -> asyncio.Protocol:
            return _Protocol(
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )

        self.servers = [
            await loop.create_server(new_connection, sock=listening, backlog=config.backlog)
            if config.ssl is None
            # uvicorn calls only close() and wait_closed() of its servers. TlsServer has both methods.
            else cast(
                "asyncio.Server",
                TlsServer(
                    listening,
                    config.ssl,
                    new_connection,
                    name="HTTP",
                    advice_for=_advice_with_tls,
                    log=_audit,
                    refusals=self._refusals,
                    handshake_s_max=HANDSHAKE_S_MAX,
                ),
            )
            for listening in sockets
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install no signal handlers: the gateway process needs the signals itself, to end long polls."""
        yield
