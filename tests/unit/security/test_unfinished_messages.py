"""Messages on gRPC streams that never end are limited in bytes, and connections are limited for
each address.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from odradek_broker.rpc import unfinished
from odradek_broker.rpc.intake import GrpcIntake
from odradek_broker.rpc.peers import Peer, peer_of
from odradek_broker.rpc.unfinished import (
    FETCH_WINDOW_BYTES,
    ConnectionWatch,
    SocketBytes,
    UnfinishedMessages,
    WatchedStream,
)
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import broker_service_pb2_grpc as pb_grpc
from odradek_runtime.tcp_sockets import close_connections, connections_to
from tests.unit.security.login_server import LoginServer, login_server
from tests.unit.security.raw_http2 import RawHttp2, raw_http2

MIB = 1 << 20
PRODUCE = "/odradek.v1.BrokerService/Produce"
PEER = ("10.0.0.1", 4711)


class Line:
    """A connection as the kernel counts it, and the broker's side of it."""

    def __init__(self, messages: UnfinishedMessages, peer: Peer = PEER) -> None:
        self.messages = messages
        self.peer = peer
        self.received = self.sent = 0

    def begin(self, owner: str = "User:alice", now_s: float = 0.0) -> WatchedStream:
        return self.messages.begin(self.peer, owner, now_s, lambda: None)

    @property
    def counted(self) -> dict[Peer, SocketBytes]:
        return {self.peer: SocketBytes(self.received, self.sent)}


def test_a_client_that_finishes_its_messages_holds_nothing_however_long_it_lives() -> None:
    messages = UnfinishedMessages(owner_bytes_max=MIB, total_bytes_max=MIB)
    line, draw = Line(messages), random.Random(1)
    busy, idle = line.begin(), line.begin()
    for second in range(1, 100_000):
        for _ in range(draw.randrange(3)):
            size = draw.choice((200, 10_000, 300_000))
            line.received += size + 60 + size // 300  # frames and TLS records
            busy.delivered(size, float(second))
        line.messages.called(PEER, 100)
        line.received += 100 + 350  # headers
        line.sent += 500_000
        line.received += 1_000  # window updates and pings
        assert not messages.look(line.counted, float(second))
    assert messages.total_bytes < MIB
    assert idle.waiting_since_s == 0


def test_streams_whose_messages_do_not_end_are_ended_and_others_are_not() -> None:
    messages = UnfinishedMessages(owner_bytes_max=64 * MIB, total_bytes_max=256 * MIB)
    hostile, honest = Line(messages), Line(messages, ("10.0.0.2", 1))
    stuck = [hostile.begin("User:mallory") for _ in range(4)]
    beside = honest.begin("User:alice")
    hostile.received = 64 * MIB
    assert not messages.look(hostile.counted | honest.counted, 1.0)
    hostile.received = 80 * MIB
    assert messages.look(hostile.counted | honest.counted, 2.0) == stuck
    assert messages.total_bytes == 0
    assert not beside.is_ended


def test_an_owner_pays_for_all_its_connections() -> None:
    messages = UnfinishedMessages(owner_bytes_max=64 * MIB, total_bytes_max=256 * MIB)
    lines = [Line(messages, ("10.0.0.1", port)) for port in range(20)]
    streams = {line.peer: line.begin("User:mallory") for line in lines}
    counted: dict[Peer, SocketBytes] = {}
    for line in lines:
        line.received = 10 * MIB
        counted |= line.counted
    ended = messages.look(counted, 2.0)
    assert 12 <= len(ended) <= 15
    assert messages.total_bytes <= 64 * MIB
    assert set(ended) <= set(streams.values())


def test_many_producers_in_the_middle_of_a_usual_message_are_no_attack() -> None:
    messages = UnfinishedMessages(owner_bytes_max=64 * MIB, total_bytes_max=256 * MIB)
    lines = [Line(messages, ("10.0.0.1", port)) for port in range(500)]
    counted: dict[Peer, SocketBytes] = {}
    for line in lines:
        line.begin("User:spark")
        line.received = MIB
        counted |= line.counted
    assert not messages.look(counted, 2.0)


def test_bytes_of_young_streams_stay_in_the_estimate_when_an_old_one_is_ended() -> None:
    messages = UnfinishedMessages(owner_bytes_max=64 * MIB, total_bytes_max=256 * MIB)
    line = Line(messages)
    old = line.begin()
    young = [line.begin(now_s=2.0) for _ in range(3)]
    line.received = 80 * MIB
    assert messages.look(line.counted, 2.0) == [old]
    messages.finish(old)
    late = line.begin(now_s=2.05)
    messages.finish(young[0])
    assert not messages.look(line.counted, 2.05)
    assert messages.total_bytes > 64 * MIB
    assert messages.look(line.counted, 2.1) == young[1:]
    assert messages.total_bytes > 64 * MIB
    assert messages.look(line.counted, 2.2) == [late]
    assert messages.total_bytes == 0
    assert not messages.look(line.counted, 9.0)


def test_an_old_stream_on_each_connection_does_not_hide_the_bytes_of_the_others() -> None:
    messages = UnfinishedMessages(owner_bytes_max=64 * MIB, total_bytes_max=256 * MIB)
    counted: dict[Peer, SocketBytes] = {}
    now_s = 0.0
    for port in range(20):
        line = Line(messages, ("10.0.0.1", port))
        line.begin("User:mallory", now_s)
        now_s += 1.0
        for _ in range(3):
            line.begin("User:mallory", now_s)
        line.received = 80 * MIB
        counted |= line.counted
        for stream in messages.look(counted, now_s):
            messages.finish(stream)
    for stream in messages.look(counted, now_s + 1):
        messages.finish(stream)
    assert messages.total_bytes <= 64 * MIB
    held = sum(80 * MIB for line in messages._connections.values() if line.streams)
    assert held <= 64 * MIB


def test_a_young_stream_accounts_for_its_part_with_its_next_message() -> None:
    messages = UnfinishedMessages(owner_bytes_max=64 * MIB, total_bytes_max=256 * MIB)
    line = Line(messages)
    old, honest = line.begin(), line.begin(now_s=2.0)
    line.received = 90 * MIB  # ten are the honest stream's
    assert messages.look(line.counted, 2.0) == [old]
    messages.finish(old)
    line.received += 2 * MIB
    honest.delivered(12 * MIB, 2.02)
    assert not messages.look(line.counted, 2.05)
    assert messages.total_bytes <= 2 * MIB
    assert not messages.look(line.counted, 9.0)
    line.received += 70 * MIB
    assert messages.look(line.counted, 10.0) == [honest]


def test_fetch_streams_may_hold_less_for_each_of_them() -> None:
    messages = UnfinishedMessages(owner_bytes_max=64 * MIB, total_bytes_max=256 * MIB)
    line = Line(messages)
    streams = [
        messages.begin(PEER, "User:mallory", 0.0, lambda: None, window_bytes=FETCH_WINDOW_BYTES)
        for _ in range(400)
    ]
    line.received = 88 * MIB
    assert not messages.look(line.counted, 1.0)
    line.received = 92 * MIB
    assert set(messages.look(line.counted, 2.0)) == set(streams)
    for stream in streams:
        messages.finish(stream)
        messages.finish(stream)
    line.received += 2 * MIB  # a stream of records has its larger window again
    line.begin("User:mallory", 2.0)
    line.received += MIB
    assert not messages.look(line.counted, 3.0)


def test_all_owners_together_have_a_bound_and_the_largest_pays() -> None:
    messages = UnfinishedMessages(owner_bytes_max=64 * MIB, total_bytes_max=100 * MIB)
    lines = [Line(messages, (f"10.0.0.{number}", 1)) for number in range(4)]
    streams = [line.begin(f"User:{number}") for number, line in enumerate(lines)]
    counted: dict[Peer, SocketBytes] = {}
    for number, line in enumerate(lines):
        line.received = (10 + 15 * number) * MIB  # 10, 25, 40, 55
        counted |= line.counted
    assert messages.look(counted, 2.0) == [streams[3]]
    assert messages.total_bytes <= 100 * MIB


def test_a_new_connection_from_the_same_port_begins_at_nothing() -> None:
    messages = UnfinishedMessages(owner_bytes_max=MIB, total_bytes_max=MIB)
    line = Line(messages)
    stream = line.begin()
    line.received = 50 * MIB
    stream.delivered(50 * MIB, 1.0)
    assert not messages.look(line.counted, 1.0)
    messages.finish(stream)
    line.received = 5000
    line.begin(now_s=2.0)
    assert not messages.look(line.counted, 3.0)
    assert not messages.look({}, 4.0)


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:10.0.0.1:4711", ("10.0.0.1", 4711)),
        ("ipv6:%5B::1%5D:4711", ("::1", 4711)),
        ("ipv6:[::ffff:10.0.0.1]:4711", ("10.0.0.1", 4711)),
        ("unix:", ("", 0)),
    ],
)
def test_peers_are_named_as_the_kernel_names_them(text: str, peer: Peer) -> None:
    assert peer_of(text) == peer


def test_the_kernel_counts_the_bytes_of_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with (
            socket.create_connection(("127.0.0.1", port)) as client,
            socket.create_connection(("127.0.0.1", port)) as other,
            listening.accept()[0] as accepted,
            listening.accept()[0],
        ):
            client.sendall(bytes(1000))
            assert len(accepted.recv(1000, socket.MSG_WAITALL)) == 1000
            counted = {c.port: c.received_bytes for c in connections_to(port)}
            assert counted == {client.getsockname()[1]: 1000, other.getsockname()[1]: 0}
            assert close_connections(port, {client.getsockname()}) == 1
            client.settimeout(5)
            other.settimeout(5)
            assert client.recv(1) == b""
            other.sendall(b"x")


@contextlib.asynccontextmanager
async def watched_server(
    *, connections_per_ip_max: int = 1000, idle_per_ip_max: int = 1000
) -> AsyncIterator[tuple[LoginServer, GrpcIntake]]:
    intake = GrpcIntake()
    watch = ConnectionWatch(
        intake.messages,
        intake.without_call,
        connections_per_ip_max=connections_per_ip_max,
        idle_per_ip_max=idle_per_ip_max,
    )
    async with login_server(wants_login=False, intake=intake) as server:
        watch.add_port(int(server.endpoint.split(":")[1]))
        watching = asyncio.create_task(watch.run())
        try:
            yield server, intake
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def hold_halves(client: RawHttp2, count: int, mib: int) -> list[int]:
    """Begin messages on this many streams, stop before their end, and return the streams."""
    streams = list(range(1, 2 * count, 2))
    for stream in streams:
        client.begin(stream, PRODUCE)
    await asyncio.gather(
        *(
            client.send_half(stream, announced_bytes=(mib + 1) * MIB, sent_bytes=mib * MIB)
            for stream in streams
        )
    )
    return streams


async def test_half_messages_on_streams_end_beside_an_honest_stream() -> None:
    async with watched_server() as (server, intake):
        host, port = server.endpoint.split(":")
        async with (
            grpc.aio.insecure_channel(server.endpoint) as channel,
            raw_http2(host, int(port)) as client,
        ):
            stub: Any = pb_grpc.BrokerServiceStub(channel)
            honest = stub.Produce()
            await honest.write(pb.ProduceRequest(request_id=1))
            assert (await honest.read()).request_id == 1
            await hold_halves(client, 5, 20)
            messages = intake.messages
            # They are 36 MiB above the share of an owner. Whether a third one ends depends on when its call began.
            async with asyncio.timeout(20):
                while len(client.ended) < 2 or messages.total_bytes > unfinished.OWNER_BYTES_MAX:  # noqa: ASYNC110 - as below
                    await asyncio.sleep(0.005)
            assert not client.is_closed, client.goodbye
            await honest.write(pb.ProduceRequest(request_id=2))
            assert (await honest.read()).request_id == 2
            honest.cancel()
        async with asyncio.timeout(10):
            while intake.streams.total:  # noqa: ASYNC110 - gRPC has no event for it
                await asyncio.sleep(0.005)


async def test_one_half_message_of_the_largest_size_is_legal() -> None:
    async with watched_server() as (server, intake):
        host, port = server.endpoint.split(":")
        async with raw_http2(host, int(port)) as client:
            await hold_halves(client, 1, 30)
            async with asyncio.timeout(10):
                while intake.messages.total_bytes < 28 * MIB:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.005)
            assert not client.ended


async def test_one_address_has_so_many_connections_without_a_call() -> None:
    async with (
        watched_server(idle_per_ip_max=4) as (server, _intake),
        contextlib.AsyncExitStack() as s,
    ):
        host, port = server.endpoint.split(":")
        async with grpc.aio.insecure_channel(server.endpoint) as channel:
            stub: Any = pb_grpc.BrokerServiceStub(channel)
            await stub.Metadata(pb.MetadataRequest())
            crowd = [await s.enter_async_context(raw_http2(host, int(port))) for _ in range(10)]
            async with asyncio.timeout(20):
                while sum(stranger.is_closed for stranger in crowd) < 6:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.01)
            await stub.Metadata(pb.MetadataRequest())
            assert len(connections_to(int(port))) == 5


async def test_one_address_has_so_many_connections_in_all() -> None:
    async with (
        watched_server(connections_per_ip_max=3) as (server, _intake),
        contextlib.AsyncExitStack() as s,
    ):
        host, port = server.endpoint.split(":")
        crowd = [await s.enter_async_context(raw_http2(host, int(port))) for _ in range(8)]
        for stranger in crowd:
            stranger.begin(1, PRODUCE)
        async with asyncio.timeout(20):
            while sum(stranger.is_closed for stranger in crowd) < 5:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        assert len(connections_to(int(port))) == 3


async def test_a_system_that_does_not_tell_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def untold(port: int) -> list[Any]:
        raise OSError("sock_diag is Linux only")

    monkeypatch.setattr(unfinished, "connections_to", untold)
    intake = GrpcIntake()
    watch = ConnectionWatch(
        intake.messages, intake.without_call, connections_per_ip_max=1, idle_per_ip_max=1
    )
    watch.add_port(1)
    await watch.run()
    assert any("are not limited" in record.getMessage() for record in caplog.records)


async def test_the_limits_remain_after_a_moment_without_descriptors_and_threads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter(
        [
            OSError(errno.EMFILE, "too many open files"),
            TimeoutError(),
            RuntimeError("can't start new thread"),
            None,
        ]
    )
    listed = asyncio.Event()

    def list_or_fail(port: int) -> list[Any]:
        if (failure := next(failures, None)) is not None:
            raise failure
        loop.call_soon_threadsafe(listed.set)
        return connections_to(port)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(unfinished, "connections_to", list_or_fail)
    async with watched_server(connections_per_ip_max=1) as (server, _), asyncio.timeout(20):
        await listed.wait()
        host, port = server.endpoint.split(":")
        async with raw_http2(host, int(port)) as first, raw_http2(host, int(port)) as second:
            # Both connections may be new to the watch in the same turn, so it may close either of them.
            while not (first.is_closed or second.is_closed):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
    warnings = [record for record in caplog.records if "are not limited" in record.getMessage()]
    assert len(warnings) == 1


class TestPlantedBugs:
    """Each bound is switched off, and the named test must fail."""

    async def test_half_messages_are_not_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(UnfinishedMessages, "_excess", lambda self, now_s: [])
        with pytest.raises(AssertionError):
            test_streams_whose_messages_do_not_end_are_ended_and_others_are_not()

    async def test_delivered_messages_are_not_counted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(WatchedStream, "delivered", lambda self, size_bytes, now_s: None)
        with pytest.raises(AssertionError):
            test_a_client_that_finishes_its_messages_holds_nothing_however_long_it_lives()
