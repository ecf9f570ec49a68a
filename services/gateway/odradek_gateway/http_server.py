"""The HTTP server: uvicorn, with TLS that is reloaded, the peer's certificate, and bounds on what a peer may do.

A connection is closed that has not ended its TLS handshake within HANDSHAKE_S_MAX, has not sent the whole
head of its first request within HEAD_S_MAX, or that of a later one so long after its first byte
(slowloris), and one that read nothing of its answer for STALLED_S_MAX. A head above HEAD_BYTES_MAX is
answered 431. When the server stops, connections at rest are closed at once, the others after their answer;
who does not say goodbye (TLS' close_notify, which clients with a pool do not) within GOODBYE_S_MAX is not
waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from odradek_gateway.auth.authentication import CERTIFICATE
from odradek_gateway.auth.callers import HEALTH_PATHS
from odradek_gateway.errors import error_body
from odradek_gateway.settings import GatewaySettings
from odradek_runtime.listeners import GRPC, HTTP, KAFKA, TLS, farewell, recognize
from odradek_runtime.logs import event_log
from odradek_runtime.tls import TlsFiles, server_context

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
_log = event_log(__name__)


class _HeadTooLarge(Exception):
    """Raised out of the parser, which ends with it."""


class _Protocol(HttpToolsProtocol):
    """One connection. The parser bounds nothing, so what it makes of a head is counted here."""

    def connection_made(self, transport: Any) -> None:
        """Note who is there, and expect a request soon."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        self._is_new = True  # nothing was received yet
        self._head_bytes = 0  # of this message, trailers too
        self._unparsed_bytes = 0  # since the parser made anything of them
        self._is_in_head = False
        self._is_last_answer = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._expect_head()
        self.app: Any = _Introduced(self.app, certificate)

    # --- the head of a request --------------------------------------------------------------------

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S_MAX, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:  # it stands behind a request that is at work, and may not be read before
            self._expect_head()

    def _head_ends(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        if self._is_new:
            self._is_new = False
            if self._is_foreign(data[:4]):
                return
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._is_in_head:  # seldom: most come as a whole
            self._expect_head()
        if self._unparsed_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse_head()

    def _is_foreign(self, first: bytes) -> bool:
        """Whether a client of another protocol is there; it is told so, and the connection closed."""
        protocol = recognize(first)
        if protocol is None or protocol == HTTP:
            return False
        advice = f"this is the listener HTTP of a gateway: {_ADVICE[protocol]}"
        peer = self.transport.get_extra_info("peername")
        _log.info(
            "Closed a connection",
            reason=f"a {protocol} client: {advice}",
            host=str(peer[0]) if peer else "",
        )
        self.transport.write(farewell(protocol, advice))
        self.transport.close()
        return True

    def on_message_begin(self) -> None:
        """Its first byte."""
        self._head_bytes = self._unparsed_bytes = 0
        self._is_in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of it."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One that is there as a whole."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size_bytes: int) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += size_bytes
        if self._head_bytes > HEAD_BYTES_MAX:
            raise _HeadTooLarge

    def on_headers_complete(self) -> None:
        """The request begins. Probes are answered however many connections there are: a restart would help nobody."""
        self._unparsed_bytes = 0
        self._is_in_head = False
        self._head_ends()
        is_probe = self.url.partition(b"?")[0] in _PROBES
        self.limit_concurrency = None if is_probe else self.config.limit_concurrency
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of it."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """The parser gave up."""
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

    # --- answers ----------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """More is to be read than the network takes."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Most of it is read."""
        self._stalled_no_more()
        super().resume_writing()

    def _expect_reading(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(STALLED_S_MAX, self._look_at_reading, unread_bytes)

    def _look_at_reading(self, unread_bytes: int) -> None:
        if self.transport.get_write_buffer_size() < unread_bytes:
            self._expect_reading()
        else:
            self.transport.abort()

    def _stalled_no_more(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def shutdown(self) -> None:
        """The server stops."""
        self._is_last_answer = True
        super().shutdown()
        self._part()

    def on_response_complete(self) -> None:
        """An answer is sent as a whole."""
        super().on_response_complete()
        if self._is_last_answer:
            self._part()

    def _part(self) -> None:
        if self.transport.is_closing():
            self.loop.call_later(GOODBYE_S_MAX, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is waited for any more."""
        self._head_ends()
        self._stalled_no_more()
        super().connection_lost(exc)


class _Introduced:
    """The application, told of the connection's certificate."""

    __slots__ = ("_app", "_certificate")

    def __init__(self, app: Callable[..., Awaitable[None]], certificate: bytes | None) -> None:
        self._app = app
        self._certificate = certificate

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if self._certificate is not None:
            scope[CERTIFICATE] = self._certificate
        await self._app(scope, receive, send)


class _Config(uvicorn.Config):
    """With a context of our own."""

    def __init__(self, app: Any, *, settings: GatewaySettings, **options: Any) -> None:
        super().__init__(app, http=_Protocol, **options)
        self._settings = settings

    def load(self) -> None:
        """Raises OSError, ssl.SSLError for files that cannot be used."""
        super().load()
        if self._settings.http_ssl_certificate:
            certificate, key, ca = self._settings.http_tls_paths
            self.ssl = server_context(
                TlsFiles(certificate=certificate, key=key, ca=ca),
                client_auth=self._settings.http_ssl_client_auth,
            )


class HttpServer(uvicorn.Server):
    """Signals are the process's, not the server's."""

    def __init__(self, app: Any, settings: GatewaySettings, *, connections_max: int) -> None:
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
        """As uvicorn's, which leaves a handshake the event loop's 60 s."""
        assert sockets is not None, "the process takes the port"
        config, loop = self.config, asyncio.get_running_loop()
        await self.lifespan.startup()

        def new_connection() -> asyncio.Protocol:
            return _Protocol(
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )

        self.servers = [
            await loop.create_server(
                new_connection,
                sock=one,
                ssl=config.ssl,
                ssl_handshake_timeout=None if config.ssl is None else HANDSHAKE_S_MAX,
                backlog=config.backlog,
            )
            for one in sockets
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """None: uvicorn's handlers would hide the signal from the process, which has long polls to wake."""
        yield
