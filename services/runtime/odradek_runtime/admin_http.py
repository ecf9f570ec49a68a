"""`/metrics`, `/livez` and `/readyz` of a process, served by a minimal HTTP server without a framework."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from odradek_runtime.listeners import ListenerAddress, open_port

Check = Callable[[], str]
"""A function that checks one condition. It returns an empty string if the condition is met, otherwise the problem."""

_HEAD_BYTES_MAX: Final = 8 << 10
_REQUEST_TIMEOUT_S: Final = 5.0
_CONNECTIONS_MAX: Final = 64
_TEXT: Final = "text/plain; charset=utf-8"


class AdminHttp:
    """Serves GET requests on one port: metrics in the text format of Prometheus, liveness, and readiness."""

    def __init__(
        self,
        *,
        metrics: Callable[[], tuple[str, bytes]],
        liveness: Mapping[str, Check],
        readiness: Mapping[str, Check],
    ) -> None:
        """`metrics` returns the content type and the body of a /metrics response. `liveness` and `readiness` map the
        name of each check to the check.
        """
        self._metrics = metrics
        self._liveness = liveness
        self._readiness = readiness
        self._server: asyncio.Server | None = None
        self._connections = 0

    async def start(self, listener: ListenerAddress) -> int:
        """Start to listen, and return the port. Raises ListenRefused."""
        self._server = await asyncio.start_server(
            self._serve, sock=open_port(listener), limit=_HEAD_BYTES_MAX
        )
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Close the port. Connections that are open end by themselves within seconds, because requests time out."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > _CONNECTIONS_MAX:
                return
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, content_type, body = self._response(head)
                writer.write(
                    b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n"
                    b"Connection: close\r\n\r\n"
                    % (status.encode(), content_type.encode(), len(body))
                )
                writer.write(body)
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # the client disconnected, or does not speak HTTP
        finally:
            self._connections -= 1
            writer.close()

    def _response(self, head: bytes) -> tuple[str, str, bytes]:
        parts = head.split(b"\r\n", 1)[0].split(b" ")
        if len(parts) != 3:
            return "400 Bad Request", _TEXT, b"bad request\n"
        if parts[0] != b"GET":
            return "405 Method Not Allowed", _TEXT, b"GET only\n"
        path, _, query = parts[1].decode("latin-1").partition("?")
        if path == "/metrics":
            content_type, body = self._metrics()
            return "200 OK", content_type, body
        checks = {"/livez": self._liveness, "/readyz": self._readiness}.get(path)
        if checks is None:
            return "404 Not Found", _TEXT, b"try /metrics, /livez or /readyz\n"
        problems = {name: check() for name, check in checks.items()}
        is_good = not any(problems.values())
        lines = [
            f"{'ok' if not problem else 'FAILED'} {name} {problem}".rstrip()
            for name, problem in problems.items()
            if "verbose" in query or problem
        ]
        lines.append("ok" if is_good else "failed")
        status = "200 OK" if is_good else "503 Service Unavailable"
        return status, _TEXT, ("\n".join(lines) + "\n").encode()
