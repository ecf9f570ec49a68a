"""gRPC connections that are closed before their first call are logged and counted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from odradek.cli.certificate_authority import CertificateAuthority
from odradek_broker.rpc import unfinished
from odradek_broker.rpc.connections_without_call import PEERS_MAX, ConnectionsWithoutCall
from odradek_broker.rpc.intake import GrpcIntake
from odradek_broker.rpc.unfinished import ConnectionWatch
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import broker_service_pb2_grpc as pb_grpc
from odradek_runtime.budget.refusals import RefusalLines
from odradek_runtime.tcp_sockets import ClosedConnection, ClosedConnections, TcpConnection
from odradek_runtime.tls import TlsFiles
from tests.unit.security.login_server import LoginServer, login_server

EVENT = "A gRPC connection was closed before its first call"


def closed(host: str, port: int, received_bytes: int = 300, at: int = 9092) -> ClosedConnection:
    return ClosedConnection(at, TcpConnection(host, port, received_bytes, 0))


def one_listener(*, has_tls: bool = True) -> ConnectionsWithoutCall:
    without_call = ConnectionsWithoutCall(RefusalLines())
    without_call.add_listener("GRPC", 9092, has_tls=has_tls, connections_max=2)
    return without_call


def test_only_connections_with_bytes_and_without_a_call_count() -> None:
    without_call = one_listener()
    without_call.called(("10.0.0.1", 1))
    without_call.called(("10.0.0.1", 1))
    without_call.closed(
        [
            closed("10.0.0.1", 1),
            closed("10.0.0.1", 2, received_bytes=0),
            closed("10.0.0.1", 5, received_bytes=1),  # the end of the stream
            closed("10.0.0.1", 3, at=9999),
            closed("10.0.0.1", 4),
        ],
        1.0,
    )
    assert without_call.counts == {"GRPC": 1}
    without_call.closed([closed("10.0.0.1", 1)], 2.0)  # another connection, from the same port
    assert without_call.counts == {"GRPC": 2}


@pytest.mark.parametrize(("open_count", "is_full"), [(1, False), (2, True), (3, True)])
def test_a_listener_with_all_its_connections_is_the_reason(
    open_count: int, is_full: bool, caplog: pytest.LogCaptureFixture
) -> None:
    without_call = one_listener()
    without_call.note_open(9092, open_count)
    without_call.closed([closed("10.0.0.1", 1)], 1.0)
    (record,) = [record for record in caplog.records if record.getMessage() == EVENT]
    assert ("maximum of 2 connections" in str(record.__dict__)) == is_full
    assert ("TLS handshake" in str(record.__dict__)) != is_full


def test_an_address_is_logged_once_a_minute_and_counted_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    without_call = one_listener()
    for port in range(50):
        without_call.closed([closed("10.0.0.1", port)], 1.0)
    without_call.closed([closed("10.0.0.2", 1)], 2.0)
    without_call.closed([closed("10.0.0.1", 1)], 62.0)
    assert [record.getMessage() for record in caplog.records] == [EVENT] * 3
    assert without_call.counts["GRPC"] == 52
    registry = CollectorRegistry()

    class Families(Collector):
        def collect(self) -> Any:
            return without_call.families()

    registry.register(Families())
    name = "odradek_broker_grpc_connections_without_call_total"
    assert registry.get_sample_value(name, {"listener": "GRPC"}) == 52


def test_the_memory_of_peers_is_bounded() -> None:
    without_call = one_listener()
    for number in range(PEERS_MAX + 10):
        without_call.called((f"10.0.{number >> 8}.{number & 255}", 1))
    without_call.closed([closed("10.0.0.9", 1), closed("10.0.0.10", 1)], 1.0)
    assert without_call.counts["GRPC"] == 1


def test_the_kernel_reports_closed_connections_of_the_wanted_ports() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as second,
        contextlib.closing(
            ClosedConnections([listening.getsockname()[1] for listening in (first, second)])
        ) as reports,
    ):
        expected = []
        for listening in (other, first, second):
            port = listening.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)) as client:
                accepted = listening.accept()[0]
                client.sendall(bytes(100))
                assert accepted.recv(100, socket.MSG_WAITALL) == bytes(100)
                if listening is not other:
                    expected.append((port, "127.0.0.1", client.getsockname()[1], 100))
                # A reset frees the server's socket at once; otherwise the kernel may keep it for a while.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            accepted.close()
        found: list[tuple[int, str, int, int]] = []
        deadline_s = time.monotonic() + 10
        while len(found) < len(expected) and time.monotonic() < deadline_s:
            found += [(at, c.host, c.port, c.received_bytes) for at, c in reports.read()]
        assert found == expected
        assert reports.read() == []


@pytest.mark.parametrize("code", [errno.ENOBUFS, errno.ENOMEM])
def test_errors_of_the_kernel_do_not_hold_the_caller(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kernel:
        def recv(self, size: int) -> bytes:
            raise OSError(code, "simulated")

        def close(self) -> None:
            pass

    reports = ClosedConnections([9092])
    reports.close()
    monkeypatch.setattr(reports, "_kernel", Kernel())
    assert reports.read() == []


@contextlib.asynccontextmanager
async def watched(
    tls: TlsFiles | None = None, *, mutual: bool = False, wants_login: bool = False
) -> AsyncIterator[tuple[LoginServer, ConnectionsWithoutCall]]:
    intake = GrpcIntake()
    watch = ConnectionWatch(
        intake.messages, intake.without_call, connections_per_ip_max=1000, idle_per_ip_max=1000
    )
    async with login_server(
        wants_login=wants_login, intake=intake, tls=tls, mutual=mutual
    ) as server:
        port = int(server.endpoint.split(":")[1])
        watch.add_port(port)
        intake.without_call.add_listener(
            "GRPC", port, has_tls=tls is not None, connections_max=1000
        )
        watching = asyncio.create_task(watch.run())
        try:
            yield server, intake.without_call
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def until_counted(without_call: ConnectionsWithoutCall, count: int) -> None:
    async with asyncio.timeout(10):
        while without_call.counts["GRPC"] < count:  # noqa: ASYNC110 - the kernel has no event for it
            await asyncio.sleep(0.01)
    assert without_call.counts["GRPC"] == count


async def send(endpoint: str, content: bytes) -> None:
    host, port = endpoint.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(content)
    if not content:
        writer.close()
    with contextlib.suppress(OSError):
        await reader.read()
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "content", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x00\x05hello"]
)
async def test_clients_without_grpc_are_counted_and_port_checks_are_not(
    content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched() as (server, without_call):
        async with grpc.aio.insecure_channel(server.endpoint) as channel:
            stub: Any = pb_grpc.BrokerServiceStub(channel)
            await stub.Metadata(pb.MetadataRequest())
        await send(server.endpoint, b"")
        await send(server.endpoint, content)
        await until_counted(without_call, 1)
    (record,) = [record for record in caplog.records if record.getMessage() == EVENT]
    assert "does not use gRPC" in str(record.__dict__)


async def test_a_health_check_or_a_login_is_a_call() -> None:
    async with watched(wants_login=True) as (server, without_call):
        for attempt in ("health", "login"):
            async with grpc.aio.insecure_channel(server.endpoint) as channel:
                if attempt == "health":
                    check = health_pb2_grpc.HealthStub(channel).Check
                    with pytest.raises(
                        grpc.aio.AioRpcError
                    ):  # the server of this test has no health
                        await check(health_pb2.HealthCheckRequest())
                else:
                    call = channel.unary_unary("/odradek.v1.AuthService/Authenticate")
                    with pytest.raises(grpc.aio.AioRpcError):
                        await call(b"")
        await send(server.endpoint, b"x" * 100)
        await until_counted(without_call, 1)


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    authority = CertificateAuthority(tmp_path / "ca")
    ca = authority.create(common_name="test", days=1)
    certificate, key = authority.issue("broker-1", hosts=["127.0.0.1"], days=1)
    return TlsFiles(certificate=certificate, key=key, ca=ca)


async def test_a_client_that_does_not_trust_the_certificate_is_counted(
    tls: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched(tls) as (server, without_call):
        host, port = server.endpoint.split(":")
        for _ in range(2):
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection(host, int(port), ssl=ssl.create_default_context())
        await until_counted(without_call, 2)
    (record,) = [record for record in caplog.records if record.getMessage() == EVENT]
    assert "trust this listener's certificate" in str(record.__dict__)


async def test_a_client_without_a_certificate_is_counted(tls: TlsFiles) -> None:
    async with watched(tls, mutual=True) as (server, without_call):
        credentials = grpc.ssl_channel_credentials(tls.ca.read_bytes())
        async with grpc.aio.secure_channel(server.endpoint, credentials) as channel:
            stub: Any = pb_grpc.BrokerServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Metadata(pb.MetadataRequest())
        async with asyncio.timeout(10):
            while not without_call.counts["GRPC"]:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)


async def test_a_system_that_does_not_report_closed_connections_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(ports: list[int]) -> ClosedConnections:
        raise OSError("sock_diag is Linux only")

    monkeypatch.setattr(unfinished, "ClosedConnections", refuse)
    caplog.set_level(logging.INFO)
    async with watched() as (server, _), asyncio.timeout(10):
        async with grpc.aio.insecure_channel(server.endpoint) as channel:
            stub: Any = pb_grpc.BrokerServiceStub(channel)
            await stub.Metadata(pb.MetadataRequest())
        assert any("cannot be listed" in record.getMessage() for record in caplog.records)
