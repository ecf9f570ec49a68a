"""Hostile clients, one for each kind of attack that could once exhaust a broker or a gateway.

Each runs until it is cancelled, and counts the responses that it got, and the connections or calls
that were ended. Some log in as user `mallory`, who has rights on her own topics and groups only;
the others do not log in.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import itertools
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import grpc
import grpc.aio

from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.records.batch_header import Compression
from odradek_protocol.records.builder import BatchBuilder
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin_pb
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_runtime.budget.client_budget import ITEMS_MAX
from tests.e2e.hostile_target import MALLORY, PASSWORD, Target, many, text_of
from tests.unit.kafka.largest_requests import LargeRequest, largest_requests
from tests.unit.security.largest_rpcs import LargeRpc, largest_rpcs
from tests.unit.security.raw_http2 import RawHttp2

NAMES_A_REQUEST: Final = 4_900
_NAME_SETS: Final = 40


@functools.cache
def _names() -> list[list[str]]:
    """Return lists of names of 249 characters; no name occurs twice."""
    return [
        [f"{prefix}-{number}-".ljust(249, "x") for number in range(NAMES_A_REQUEST)]
        for prefix in range(_NAME_SETS)
    ]


@functools.cache
def _session_requests() -> list[bytes]:
    """Return fetch requests for thousands of topics with long names, each for a new fetch
    session.
    """
    head = struct.pack(">iiiibiii", -1, 0, 1, 1 << 20, 0, 0, 0, NAMES_A_REQUEST)
    partition = struct.pack(">iiiqqi", 1, 0, -1, 0, 0, 1 << 20)
    return [
        head
        + b"".join(text_of(name) + partition for name in names)
        + struct.pack(">i", 0)
        + text_of("")
        for names in _names()
    ]


@functools.cache
def _name_requests() -> list[bytes]:
    head = struct.pack(">i", NAMES_A_REQUEST)
    return [head + b"".join(map(text_of, names)) + b"\0" for names in _names()]


@functools.cache
def _large_requests() -> list[LargeRequest]:
    return list(largest_requests(count=ITEMS_MAX))


@functools.cache
def _large_rpcs() -> list[LargeRpc]:
    return list(largest_rpcs(ITEMS_MAX))


@functools.cache
def _expanding() -> bytes:
    builder = BatchBuilder(size_bytes_max=64 << 20)
    builder.append(b"key", bytes(60 << 20), None, 1_700_000_000_000)
    return builder.build(compression=Compression.GZIP) * 20


def make_inputs() -> None:
    """Build the inputs that take long to build, before anything is measured."""
    for make in (_session_requests, _name_requests, _large_requests, _large_rpcs, _expanding):
        make()


async def long_topic_names(target: Target) -> None:
    """Create and delete topics with names of 249 characters."""
    numbers = itertools.count()

    async def attempt() -> None:
        async with target.channel() as channel:
            name = f"mallory-{next(numbers)}-".ljust(249, "x")
            new = admin_pb.NewTopic(name=name, partition_count=1, replication_factor=1)
            await _unary(channel, "CreateTopics", admin_pb.CreateTopicsRequest(topics=[new]))
            await _unary(channel, "DeleteTopics", admin_pb.DeleteTopicsRequest(names=[name]))

    await target.again(attempt)


async def _unary(channel: grpc.aio.Channel, method: str, request: Any) -> bytes:
    call: Any = channel.unary_unary(
        f"/odradek.v1.AdminService/{method}", request_serializer=lambda m: m.SerializeToString()
    )
    response: bytes = await call(request, timeout=30)
    return response


async def fetch_sessions_of_long_names(target: Target) -> None:
    """Open fetch sessions of thousands of topics, each on a new connection."""
    requests = itertools.cycle(_session_requests())

    async def attempt() -> None:
        async with target.kafka_connection() as connection:
            await connection.ask(ApiKey.FETCH, 11, next(requests))

    await many(4, lambda: target.again(attempt))


async def refused_names_over_kafka(target: Target) -> None:
    """Ask for topics that mallory may not see, with new names in each request."""
    requests = itertools.cycle(_name_requests())

    async def attempt() -> None:
        async with target.kafka_connection() as connection:
            while True:
                await connection.ask(ApiKey.METADATA, 4, next(requests))
                target.outcomes["answered"] += 1

    await many(4, lambda: target.again(attempt))


async def largest_of_every_api(target: Target) -> None:
    """Send the largest legal request of every API, with five in flight on each of two
    connections.
    """
    requests = _large_requests()

    async def attempt() -> None:
        async with target.kafka_connection() as connection:
            for batch in _fives(requests):
                for request in batch:
                    connection.send(request.key, request.version, request.body)
                for _ in batch:
                    await connection.response()
                    target.outcomes["answered"] += 1

    await many(2, lambda: target.again(attempt))


def _fives(requests: list[LargeRequest]) -> Iterator[list[LargeRequest]]:
    for start in itertools.cycle(range(0, len(requests), 5)):
        yield requests[start : start + 5]


async def compacted_batches(target: Target) -> None:
    """Send batches that decompress to 60 MiB each to a compacted topic, 20 in a request."""
    records = _expanding()
    body = struct.pack(">hhii", -1, -1, 10_000, 1) + text_of("mallory-compacted")
    body += struct.pack(">iii", 1, 0, len(records)) + records

    async def attempt() -> None:
        async with target.kafka_connection() as connection:
            while True:
                await connection.ask(ApiKey.PRODUCE, 7, body)
                target.outcomes["answered"] += 1

    await many(2, lambda: target.again(attempt))


async def half_frames(target: Target) -> None:
    """Send the first 64 MiB of frames of 100 MiB, and then single bytes."""

    async def attempt() -> None:
        async with target.kafka_connection() as connection:
            connection.writer.write(
                struct.pack(">i", 100 << 20) + struct.pack(">hhih", 0, 7, 1, -1)
            )
            for _ in range(64):
                connection.writer.write(bytes(1 << 20))
                await connection.writer.drain()
            while not connection.reader.at_eof():
                connection.writer.write(b"\0")
                await connection.writer.drain()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await connection.reader.read(1)

    await many(4, lambda: target.again(attempt))


async def null_subscriptions(target: Target) -> None:
    """Send a ConsumerGroupHeartbeat with a null among its topics."""
    group = b"\x0emallory-group"
    body = group + b"\x02m" + struct.pack(">i", 0) + b"\0\0" + struct.pack(">i", 5000)
    body += b"\x02\0" + b"\0" + b"\0" + b"\0"

    async def attempt() -> None:
        async with target.kafka_connection() as connection:
            await connection.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, body)

    await many(4, lambda: target.again(attempt))


async def members_without_end(target: Target) -> None:
    """Send JoinGroup without a member id, with client ids of 32,000 characters."""
    client = b"c" * 32_000
    body = text_of("mallory-group") + struct.pack(">ii", 1_800_000, 60_000) + text_of("")
    body += text_of("consumer") + struct.pack(">i", 1) + text_of("range") + struct.pack(">i", 0)

    async def attempt() -> None:
        async with target.kafka_connection() as connection:
            while True:
                await connection.ask(ApiKey.JOIN_GROUP, 4, body, client)
                target.outcomes["answered"] += 1

    await many(4, lambda: target.again(attempt))


async def crowd_before_the_login(target: Target) -> None:
    """Open 400 connections that send 4 KiB of a frame each, and open them again when they are
    closed.
    """

    async def attempt() -> None:
        async with target.kafka_connection(logs_in=False) as connection:
            connection.writer.write(struct.pack(">i", 4_096) + bytes(4_000))
            while await connection.reader.read(1):
                pass
        raise ConnectionResetError

    await many(400, lambda: target.again(attempt))


async def wrong_passwords(target: Target) -> None:
    """Log in by PLAIN with wrong passwords, over six connections."""

    async def attempt() -> None:
        async with target.kafka_connection(logs_in=False) as connection:
            await connection.log_in(MALLORY, "wrong")

    await many(6, lambda: target.again(attempt))


async def crowd_of_idle_grpc_connections(target: Target) -> None:
    """Open 300 gRPC connections that only answer pings."""

    async def attempt() -> None:
        async with target.http2() as connection:
            await connection.until_closed()
        raise ConnectionResetError

    await many(300, lambda: target.again(attempt))


async def refused_names_over_grpc(target: Target) -> None:
    """Ask for topics that mallory may not see, with new names in each request."""
    names = itertools.cycle(_names())

    async def attempt() -> None:
        async with target.channel() as channel:
            call: Any = channel.unary_unary(
                "/odradek.v1.BrokerService/Metadata",
                request_serializer=lambda message: message.SerializeToString(),
            )
            while True:
                await call(pb.MetadataRequest(topics=next(names)), timeout=30)
                target.outcomes["answered"] += 1

    await many(4, lambda: target.again(attempt))


async def largest_of_every_rpc(target: Target) -> None:
    """Send the largest legal request of every RPC."""
    rpcs = _large_rpcs()

    async def attempt() -> None:
        async with target.channel() as channel:
            for rpc in itertools.cycle(rpcs):
                call: Any = channel.stream_stream(
                    rpc.path, request_serializer=lambda message: message.SerializeToString()
                )(timeout=2)
                try:
                    await call.write(rpc.request)
                    await call.done_writing()
                    while await call.read() is not grpc.aio.EOF:
                        pass
                    target.outcomes["answered"] += 1
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    target.outcomes["call ended"] += 1
                finally:
                    call.cancel()

    await many(2, lambda: target.again(attempt))


async def half_messages(target: Target) -> None:
    """Send 32 unfinished requests over one connection."""
    await _half_messages(target, "/odradek.v1.BrokerService/Metadata", 32, 4)


async def half_messages_on_streams(target: Target) -> None:
    """Open 100 Produce streams over one connection, and send 31 MiB of a message of 32 MiB on
    each.
    """
    await _half_messages(target, "/odradek.v1.BrokerService/Produce", 100, 31)


async def _half_messages(target: Target, method: str, streams: int, mib: int) -> None:
    async def attempt() -> None:
        async with target.http2() as connection, asyncio.TaskGroup() as sending:
            for number in range(streams):
                stream = 2 * number + 1
                connection.begin(stream, method)
                sending.create_task(_half_message(connection, stream, mib))
            await connection.until_closed()

    async def _half_message(connection: RawHttp2, stream: int, mib: int) -> None:
        announced = (mib + 1) << 20
        await connection.send_half(stream, announced_bytes=announced, sent_bytes=mib << 20)
        await connection.until_ended(stream)
        target.outcomes["call ended"] += 1

    await target.again(attempt)


async def unfinished_bodies(target: Target) -> None:
    """Send 60 requests to the gateway whose bodies stop before their end, and then send single
    bytes.
    """

    async def attempt() -> None:
        reader, writer = await _http(target)
        try:
            writer.write(_post(60 << 20))
            for _ in range(8):
                writer.write(bytes(1 << 20))
                await writer.drain()
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        line = await reader.readline()
                        target.outcomes[line[9:12].decode() or "connection ended"] += 1
                        return
        finally:
            writer.transport.abort()

    await many(60, lambda: target.again(attempt))


async def slots_of_requests(target: Target) -> None:
    """Send 300 requests to the gateway with one byte of the body each second."""

    async def attempt() -> None:
        reader, writer = await _http(target)
        try:
            writer.write(_post(1000))
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        line = await reader.readline()
                        target.outcomes[line[9:12].decode() or "connection ended"] += 1
                        return
        finally:
            writer.transport.abort()

    await many(300, lambda: target.again(attempt))


async def wrong_passwords_at_the_gateway(target: Target) -> None:
    """Send wrong Basic credentials to the gateway, one after the other."""

    async def attempt() -> None:
        reader, writer = await _http(target)
        try:
            while True:
                writer.write(_get("wrong"))
                line = await reader.readline()
                target.outcomes[line[9:12].decode() or "connection ended"] += 1
                if not line:
                    return
                size = 0
                while (line := await reader.readline()).strip():
                    if line.lower().startswith(b"content-length:"):
                        size = int(line.split(b":")[1])
                await reader.readexactly(size)
        finally:
            writer.transport.abort()

    await many(4, lambda: target.again(attempt))


async def _http(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", target.gateway, ssl=target.strangers)


def _post(body_bytes: int) -> bytes:
    return (
        "POST /topics/mallory-topic HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Basic {_basic(PASSWORD)}\r\nContent-Length: {body_bytes}\r\n"
        "Content-Type: application/vnd.kafka.binary.v2+json\r\n\r\n"
    ).encode()


def _get(password: str) -> bytes:
    return (
        "GET /topics HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Basic {_basic(password)}\r\n\r\n"
    ).encode()


def _basic(password: str) -> str:
    return base64.b64encode(f"{MALLORY}:{password}".encode()).decode()


KINDS: Final[dict[str, Callable[[Target], Awaitable[None]]]] = {
    f"{protocol}: {kind.__name__.replace('_', ' ')}": kind
    for protocol, kinds in {
        "Kafka": (
            fetch_sessions_of_long_names,
            refused_names_over_kafka,
            largest_of_every_api,
            compacted_batches,
            half_frames,
            null_subscriptions,
            members_without_end,
            crowd_before_the_login,
            wrong_passwords,
        ),
        "gRPC": (
            long_topic_names,
            crowd_of_idle_grpc_connections,
            refused_names_over_grpc,
            largest_of_every_rpc,
            half_messages,
            half_messages_on_streams,
        ),
        "HTTP": (unfinished_bodies, slots_of_requests, wrong_passwords_at_the_gateway),
    }.items()
    for kind in kinds
}
