"""The HTTP server: uvicorn, with TLS that is reloaded, the peer's certificate, and a bound on silence.

A connection that has not sent the whole head of its first request within FIRST_REQUEST_S_MAX is
closed (slowloris), and one that has not ended its TLS handshake within HANDSHAKE_S_MAX. When the server
stops, connections at rest are closed at once, the others after their answer; who does not say goodbye
(TLS' close_notify, which clients with a pool do not) within GOODBYE_S_MAX is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from odradek_gateway.auth.authentication import CERTIFICATE
from odradek_gateway.settings import GatewaySettings
from odradek_runtime.server_tls import server_context
from odradek_runtime.tls import TlsFiles

FIRST_REQUEST_S_MAX: Final = 10.0
HANDSHAKE_S_MAX: Final = 5.0
GOODBYE_S_MAX: Final = 0.5
_Base: Any = AutoHTTPProtocol  # httptools' protocol where that is installed, else h11's


class _Protocol(_Base):  # type: ignore[misc]
    """One connection."""

    def connection_made(self, transport: Any) -> None:
        """Note who is there, and expect a request soon."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        timer = asyncio.get_running_loop().call_later(FIRST_REQUEST_S_MAX, transport.abort)
        self._first_request_timer = timer
        self._is_last_answer = False
        self.app: Any = _Introduced(self.app, certificate, timer)

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
            asyncio.get_running_loop().call_later(GOODBYE_S_MAX, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is waited for any more."""
        self._first_request_timer.cancel()
        super().connection_lost(exc)


class _Introduced:
    """The application, told of the connection's certificate."""

    __slots__ = ("_app", "_certificate", "_timer")

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        certificate: bytes | None,
        timer: asyncio.TimerHandle,
    ) -> None:
        self._app = app
        self._certificate = certificate
        self._timer = timer

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self._timer.cancel()
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
