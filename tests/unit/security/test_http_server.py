"""The gateway's HTTP server over real sockets: TLS, client certificates, and clients that send or read nothing."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from odradek.cli.certificate_authority import CertificateAuthority
from odradek_gateway import http_server
from odradek_gateway.auth.authentication import CERTIFICATE
from odradek_gateway.http_server import HttpServer
from odradek_gateway.settings import GatewaySettings
from odradek_runtime.listeners import ListenerAddress, open_port
from odradek_runtime.tls import principal_of_certificate

CLOSED_S = 20.0


async def whoami(scope: Any, receive: Any, send: Any) -> None:
    principal = principal_of_certificate(scope.get(CERTIFICATE)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": principal})


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    made = CertificateAuthority(tmp_path)
    made.create(common_name="test", days=1)
    return made


@contextlib.asynccontextmanager
async def serving(
    authority: CertificateAuthority | None,
    client_auth: str,
    app: Any = whoami,
    connections_max: int = 100,
) -> AsyncIterator[int]:
    tls: dict[str, Any] = {}
    if authority is not None:
        certificate, key = authority.issue("gateway-1", hosts=["127.0.0.1"], days=1)
        tls = {
            "http_ssl_certificate": str(certificate),
            "http_ssl_key": str(key),
            "http_ssl_ca": str(authority.directory / "ca.crt"),
            "http_ssl_client_auth": client_auth,
        }
    listening = open_port(ListenerAddress(name="HTTP", host="127.0.0.1", port=0))
    server = HttpServer(app, GatewaySettings(**tls), connections_max=connections_max)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listening]))
        yield listening.getsockname()[1]
        server.should_exit = True


def context(authority: CertificateAuthority, name: str | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(authority.directory / "ca.crt"))
    if name is not None:
        made.load_cert_chain(*authority.issue(name, hosts=["127.0.0.1"], days=1))
    return made


async def ask(port: int, verify: ssl.SSLContext) -> str:
    async with httpx.AsyncClient(verify=verify) as http:
        return (await http.get(f"https://127.0.0.1:{port}/")).text


async def test_a_certificate_is_known_and_need_not_be_shown(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority, "requested") as port:
        assert await ask(port, context(authority)) == "User:ANONYMOUS"
        assert await ask(port, context(authority, "alice")) == "User:CN=alice"


async def test_a_certificate_may_be_required(authority: CertificateAuthority) -> None:
    async with serving(authority, "required") as port:
        assert await ask(port, context(authority, "alice")) == "User:CN=alice"
        with pytest.raises(httpx.HTTPError):
            await ask(port, context(authority))


@pytest.mark.parametrize("has_tls", [True, False])
async def test_a_server_that_stops_waits_for_no_connection_at_rest(
    authority: CertificateAuthority, has_tls: bool
) -> None:
    """A client's pool keeps connections open and reads nothing from them, so it does not answer the
    end of TLS either.
    """
    tls = context(authority) if has_tls else None
    loop = asyncio.get_running_loop()
    async with serving(authority if has_tls else None, "none") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"ANONYMOUS")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        began_s = loop.time()
    assert loop.time() - began_s < GatewaySettings().shutdown_timeout_ms / 1000 / 2
    writer.transport.abort()


@pytest.mark.parametrize("says_nothing_in", ["handshake", "head after TLS", "head"])
async def test_who_says_nothing_is_closed(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch, says_nothing_in: str
) -> None:
    limit = "HANDSHAKE_S_MAX" if says_nothing_in == "handshake" else "HEAD_S_MAX"
    monkeypatch.setattr(http_server, limit, 0.2)
    async with serving(None if says_nothing_in == "head" else authority, "none") as port:
        tls = context(authority) if says_nothing_in == "head after TLS" else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        if says_nothing_in != "handshake":
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        async with asyncio.timeout(CLOSED_S):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("begin", "piece", "counted_bytes"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"X-Many: " + b"y" * 900 + b"\r\n", 906),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ", b"y" * 1000, 1000),
        (b"GET /", b"y" * 1000, 1000),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            b"X: " + b"y" * 900 + b"\r\n",
            901,
        ),
    ],
    ids=["many headers", "one long header", "url", "trailers"],
)
async def test_a_head_that_is_too_large_is_refused_before_anybody_logs_in(
    begin: bytes, piece: bytes, counted_bytes: int
) -> None:
    called = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        called.set()

    async with serving(None, "none", app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        pieces = piece * (http_server.HEAD_BYTES_MAX // counted_bytes + 1)
        writer.write(begin + pieces + b"\r\nX-Last: x\r\n")
        async with asyncio.timeout(http_server.HEAD_S_MAX / 2):
            told = await reader.read()
        assert told.startswith(b"HTTP/1.1 431 ")
        assert told.endswith(b'larger than 65536 bytes"}')
        writer.close()
    assert called.is_set() is begin.startswith(b"POST")


async def test_a_header_without_end_is_not_taken_for_ever() -> None:
    async with serving(None, "none") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nX: " + b"y" * (16 * http_server.HEAD_BYTES_MAX))
        async with asyncio.timeout(http_server.HEAD_S_MAX / 2):
            with contextlib.suppress(ConnectionError):  # what is still on its way is not read
                assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        writer.close()


async def test_a_later_request_has_no_more_time_for_its_head_than_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(None, "none") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"ANONYMOUS")
        monkeypatch.setattr(
            http_server, "HEAD_S_MAX", 0.2
        )  # the first request has as long as usual
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        async with asyncio.timeout(CLOSED_S):
            with contextlib.suppress(ConnectionError):
                assert b"200" not in await reader.read()
        writer.close()


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """Send data until the client disconnects."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    await send({"type": "http.response.start", "status": 200, "headers": []})
    watching = asyncio.create_task(gone())
    while not watching.done():
        await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
        await asyncio.sleep(0)
    scope["state"]["ended"].set()


async def test_who_does_not_read_the_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the client's request would stay open, and its response in memory, for ever."""
    monkeypatch.setattr(http_server, "STALLED_S_MAX", 0.2)
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await endless({**scope, "state": {"ended": ended}}, receive, send)

    async with serving(None, "none", app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(CLOSED_S):
            await ended.wait()
        writer.close()


class SlowlyRead(asyncio.Transport):
    """A connection whose peer reads one byte between two checks, while there are bytes to read."""

    def __init__(self, unread_bytes: int) -> None:
        super().__init__()
        self.unread_bytes = unread_bytes
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        self.unread_bytes = max(1, self.unread_bytes - 1)
        return self.unread_bytes

    def abort(self) -> None:
        self.aborted.set()


async def test_who_reads_slowly_is_not_closed_as_long_as_he_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "STALLED_S_MAX", 0.01)
    server = HttpServer(whoami, GatewaySettings(), connections_max=1)
    protocol = http_server._Protocol(
        config=server.config, server_state=server.server_state, app_state={}
    )
    transport = SlowlyRead(unread_bytes=10)
    protocol.connection_made(transport)
    protocol.pause_writing()
    async with asyncio.timeout(CLOSED_S):
        await transport.aborted.wait()
    assert transport.unread_bytes == 1, "it was read to the last byte but one, and then no more"
    protocol.connection_lost(ConnectionAbortedError())


async def test_probes_are_answered_however_many_connections_there_are() -> None:
    """Any client may open connections, and a kubelet that gets 503 restarts the pod."""
    async with serving(None, "none", connections_max=1) as port, httpx.AsyncClient() as http:
        for path, status in (("/topics", 503), ("/livez", 200), ("/readyz?x", 200), ("/", 503)):
            told = await http.get(f"http://127.0.0.1:{port}{path}")
            assert told.status_code == status, path


async def test_who_has_asked_may_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(None, "none") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"ANONYMOUS")
            # The first request has as long as usual. Later ones arrive at once, after a rest of twice the limit.
            monkeypatch.setattr(http_server, "HEAD_S_MAX", 0.05)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await reader.read()
        writer.close()


H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
WEBSOCKET = (
    b"Upgrade: websocket\r\nConnection: keep-alive, upgrade\r\nSec-WebSocket-Version: 13\r\n"
)
TWICE = b"connection: close\r\nUPGRADE: a\r\nConnection:Upgrade\r\nupgrade: b/1, c\r\nX-Empty:\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def with_length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def in_chunks(body: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:5], body[5:]))
    return b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


async def requests_seen(sent: bytes, piece_bytes: int) -> tuple[list[tuple[str, bytes]], bytes]:
    """Send these bytes on one connection; return the paths and bodies of the requests that the application received,
    and the bytes of the responses.
    """
    seen: list[tuple[str, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        assert b"upgrade" not in dict(scope["headers"])
        seen.append((f"{scope['method']} {scope['path']}?{scope['query_string'].decode()}", body))
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
        )
        await send({"type": "http.response.body", "body": b""})

    async with serving(None, "none", app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for start in range(0, len(sent), piece_bytes):
            writer.write(sent[start : start + piece_bytes])
            await writer.drain()
            if piece_bytes < 10:
                await asyncio.sleep(0)  # the server's task reads between two pieces
        async with asyncio.timeout(CLOSED_S):
            responses = await reader.read()
        writer.close()
    return seen, responses


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
@pytest.mark.parametrize("framed", [with_length, in_chunks])
@pytest.mark.parametrize("headers", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
async def test_a_request_with_upgrade_keeps_its_body(
    headers: bytes, framed: Callable[[bytes], bytes], piece_bytes: int
) -> None:
    """Otherwise the body is lost, and a client of a proxy can hide a request in it."""
    first = b"POST /first?q=1 HTTP/1.1\r\nHost: x\r\n" + headers + framed(HIDDEN)
    again = b"PUT /again HTTP/1.1\r\nHost: x\r\n" + headers + framed(b"the body")
    bare = b"GET /bare HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n"
    sent = first + again + bare + LAST
    seen, responses = await requests_seen(sent, piece_bytes)
    assert seen == [
        ("POST /first?q=1", HIDDEN),
        ("PUT /again?", b"the body"),
        ("GET /bare?", b""),
        ("GET /last?", b""),
    ]
    assert responses.count(b"HTTP/1.1 200 OK\r\n") == 4
    assert responses.count(b"HTTP/1.1") == 4


@pytest.mark.parametrize("framed", [with_length, in_chunks])
async def test_a_connection_with_upgrade_and_close_ends_after_its_response(
    framed: Callable[[bytes], bytes],
) -> None:
    sent = b"POST /first HTTP/1.1\r\nHost: x\r\n" + TWICE + framed(HIDDEN)
    seen, responses = await requests_seen(sent, 1 << 20)
    assert seen == [("POST /first?", HIDDEN)]
    assert responses.count(b"HTTP/1.1") == 1


async def test_many_pipelined_requests_with_upgrade_are_served() -> None:
    """Thousands of them may be in one piece, so none may cost a level of recursion."""
    count = sys.getrecursionlimit() + 100
    request = b"POST /many HTTP/1.1\r\n" + H2C + with_length(b"x")
    seen, responses = await requests_seen(request * count + LAST, 1 << 20)
    assert seen == [("POST /many?", b"x")] * count + [("GET /last?", b"")]
    assert responses.count(b"HTTP/1.1 200 OK\r\n") == count + 1


@pytest.mark.parametrize(
    "head",
    [
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n" + H2C + b"Content-Length: 33\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\n" + H2C + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST / HTTP/1.1\r\n"
        + H2C
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + H2C + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
    ],
    ids=["connect", "connect with upgrade", "two lengths", "length and chunks", "gzip last"],
)
async def test_connect_and_ambiguous_bodies_are_refused_and_nothing_after_them_is_served(
    head: bytes,
) -> None:
    seen, responses = await requests_seen(head + HIDDEN, 1 << 20)
    assert seen == []
    assert responses.startswith(b"HTTP/1.1 400 ")
    assert responses.count(b"HTTP/1.1") == 1


async def test_a_head_with_upgrade_that_is_too_large_is_refused() -> None:
    many = b"X-Many: %s\r\n" % (b"y" * 900) * (http_server.HEAD_BYTES_MAX // 906 + 1)
    sent = b"POST / HTTP/1.1\r\nHost: x\r\n" + H2C + many + with_length(HIDDEN)
    seen, responses = await requests_seen(sent, 1 << 20)
    assert seen == []
    assert responses.startswith(b"HTTP/1.1 431 ")
