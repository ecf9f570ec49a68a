"""A TLS listener says which client failed its handshake and why, bounds handshakes, and knows other protocols."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from odradek.cli.certificate_authority import CertificateAuthority
from odradek_runtime import tls_server
from odradek_runtime.budget.refusals import RefusalLines
from odradek_runtime.listeners import ListenerAddress, open_port
from odradek_runtime.logs import event_log
from odradek_runtime.tls import TlsFiles, server_context
from odradek_runtime.tls_server import TlsServer


class Echo(asyncio.Protocol):
    """Sends back what it receives."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    made = CertificateAuthority(tmp_path / "ca")
    made.create(common_name="test", days=1)
    return made


@contextlib.asynccontextmanager
async def serving(
    authority: CertificateAuthority, *, handshake_s_max: float = 5.0
) -> AsyncIterator[int]:
    certificate, key = authority.issue("broker-1", hosts=["127.0.0.1"], days=1)
    files = TlsFiles(certificate=certificate, key=key, ca=authority.directory / "ca.crt")
    listening = open_port(ListenerAddress(name="KAFKA", host="127.0.0.1", port=0))
    server = TlsServer(
        listening,
        server_context(files, client_auth="required"),
        Echo,
        name="KAFKA",
        advice_for=lambda protocol: f"set security.protocol, you sent {protocol}",
        log=event_log("odradek_broker.audit"),
        refusals=RefusalLines(),
        handshake_s_max=handshake_s_max,
    )
    try:
        yield listening.getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def client_context(authority: CertificateAuthority, issuer: CertificateAuthority | None) -> Any:
    context = ssl.create_default_context(cafile=str(authority.directory / "ca.crt"))
    if issuer is not None:
        context.load_cert_chain(*issuer.issue("alice", hosts=["127.0.0.1"], days=1))
    return context


def failures(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        record.odradek_fields  # type: ignore[attr-defined]
        for record in caplog.records
        if record.getMessage() == "TLS handshake failed"
    ]


async def until_failed(caplog: pytest.LogCaptureFixture, count: int = 1) -> list[dict[str, Any]]:
    async with asyncio.timeout(10):
        while len(failures(caplog)) < count:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0.005)
    return failures(caplog)


async def talk(port: int, context: Any) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(b"hello")
        return await reader.read(5)
    finally:
        writer.transport.abort()


async def test_a_client_with_a_certificate_is_served_and_no_failure_is_logged(
    authority: CertificateAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(authority) as port:
        context = client_context(authority, authority)
        assert await asyncio.gather(*(talk(port, context) for _ in range(20))) == [b"hello"] * 20
    assert not failures(caplog)


async def test_a_probe_that_connects_and_leaves_is_no_failure(
    authority: CertificateAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(authority) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()
        assert await talk(port, client_context(authority, authority)) == b"hello"
    assert not failures(caplog)


@pytest.mark.parametrize("shows", ["none", "foreign"])
async def test_a_missing_or_foreign_certificate_is_named(
    authority: CertificateAuthority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    shows: str,
) -> None:
    foreign = CertificateAuthority(tmp_path / "foreign")
    foreign.create(common_name="another", days=1)
    async with serving(authority) as port:
        with contextlib.suppress(OSError):
            await talk(port, client_context(authority, None if shows == "none" else foreign))
        failure = (await until_failed(caplog))[0]
    assert failure["host"] == "127.0.0.1"
    assert failure["listener"] == "KAFKA"
    expected = "showed no certificate" if shows == "none" else "certificate is not accepted: "
    assert expected in failure["reason"]


async def test_a_client_that_does_not_trust_the_listener_is_named(
    authority: CertificateAuthority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = CertificateAuthority(tmp_path / "other")
    other.create(common_name="other", days=1)

    def connect(port: int) -> None:  # a client of asyncio sends no alert
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
            pytest.raises(ssl.SSLError),
        ):
            client_context(other, other).wrap_socket(connection, server_hostname="127.0.0.1")

    async with serving(authority) as port:
        await asyncio.to_thread(connect, port)
        assert "does not trust" in (await until_failed(caplog))[0]["reason"]


@pytest.mark.parametrize(
    ("first", "protocol", "shown"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP", b"set security.protocol"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "gRPC", b"set security.protocol"),
        (b"\0\0\0\x0a\0\x12\0\3\0\0\0\1\0\0", "Kafka", b""),
    ],
)
async def test_a_client_of_another_protocol_is_named_and_told_where_it_is(
    authority: CertificateAuthority,
    caplog: pytest.LogCaptureFixture,
    first: bytes,
    protocol: str,
    shown: bytes,
) -> None:
    async with serving(authority) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(first)
        assert shown in await reader.read()
        writer.close()
        failure = (await until_failed(caplog))[0]
    assert failure["reason"].startswith(f"a {protocol} client without TLS: set security.protocol")


async def test_other_bytes_are_no_tls(
    authority: CertificateAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(authority) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\xff\xfe hello there, this is no protocol at all")
        await reader.read()
        writer.close()
        assert "does not speak TLS" in (await until_failed(caplog))[0]["reason"]


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01"])
async def test_a_handshake_that_stops_ends_in_time(
    authority: CertificateAuthority, caplog: pytest.LogCaptureFixture, first: bytes
) -> None:
    async with serving(authority, handshake_s_max=0.3) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(first)
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        await until_failed(caplog)


async def test_a_flood_of_failures_is_a_bounded_number_of_lines(
    authority: CertificateAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\0\0\0\x0a\0\x12\0\3\0\0\0\1\0\0")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with serving(authority) as port:
        for _ in range(10):
            await asyncio.gather(*(fail(port) for _ in range(30)))
        await until_failed(caplog)
    assert len(failures(caplog)) == 1


async def test_one_address_has_so_many_handshakes(
    authority: CertificateAuthority,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKES_PER_IP_MAX", 3)
    async with serving(authority) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        failure = (await until_failed(caplog))[0]
        assert "finish or close some first" in failure["reason"]
        for _, writer in idle:
            writer.close()
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(OSError):
                    if await talk(port, client_context(authority, authority)) == b"hello":
                        break


async def test_a_server_that_closes_ends_its_handshakes(authority: CertificateAuthority) -> None:
    async with serving(authority) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.read()
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_it_does_the_same_on_uvloop_which_the_services_use(
    authority: CertificateAuthority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = b"\0\0\0\x0a\0\x12\0\3\0\0\0\1\0\0"
    scenarios = [
        test_a_client_with_a_certificate_is_served_and_no_failure_is_logged(authority, caplog),
        test_a_probe_that_connects_and_leaves_is_no_failure(authority, caplog),
        test_a_missing_or_foreign_certificate_is_named(authority, tmp_path, caplog, "foreign"),
        test_a_client_that_does_not_trust_the_listener_is_named(authority, tmp_path, caplog),
        test_a_client_of_another_protocol_is_named_and_told_where_it_is(
            authority, caplog, kafka, "Kafka", b""
        ),
        test_a_handshake_that_stops_ends_in_time(authority, caplog, b""),
        test_a_handshake_that_stops_ends_in_time(authority, caplog, b"\x16\x03\x01"),
        test_a_server_that_closes_ends_its_handshakes(authority),
    ]
    for scenario in scenarios:
        caplog.clear()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(scenario)
