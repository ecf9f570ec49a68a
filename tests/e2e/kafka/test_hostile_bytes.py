"""Arbitrary bytes from unauthenticated clients may end their own connections, and have no other effect."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import random
import struct
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck
import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.embedded import ClusterPlan, EmbeddedCluster
from odradek_protocol.kafka.api_keys import ITEMS_MAX, SUPPORTED, ApiKey
from odradek_protocol.primitives import write_compact_array_count
from tests.unit.kafka.foreign_messages import every_version, foreign_bytes, some
from tests.unit.kafka.test_frames import mutated

GROWTH_BYTES_MAX = 64 << 20
LATENCY_S_MAX = 15.0  # half of what one such request once cost


class Victim:
    """A broker process that the test attacks, and whose memory it watches from outside."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        pid = cluster.brokers[1].pid
        assert pid is not None
        self.process = psutil.Process(pid)
        self.host, port = cluster.kafka_bootstrap.split(":")
        self.port = int(port)

    @property
    def rss(self) -> int:
        rss: int = self.process.memory_info().rss
        return rss

    @property
    def connections(self) -> int:
        return sum(
            one.laddr.port == self.port and one.status == psutil.CONN_ESTABLISHED
            for one in self.process.net_connections("tcp")
        )

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)


@pytest.fixture
def victim(cluster: EmbeddedCluster) -> Victim:
    producer = ck.Producer({"bootstrap.servers": cluster.kafka_bootstrap})
    producer.produce("warm", b"x")
    assert producer.flush(20) == 0
    return Victim(cluster)


def latency_s(victim: Victim) -> float:
    """Return how long a produce of a well-behaved client takes."""
    producer = ck.Producer(
        {"bootstrap.servers": f"{victim.host}:{victim.port}", "linger.ms": 0, "acks": 1}
    )
    producer.produce("warm", b"first")
    assert producer.flush(20) == 0
    began = time.monotonic()
    producer.produce("warm", b"x")
    assert producer.flush(20) == 0
    return time.monotonic() - began


async def settled(victim: Victim, connections: int) -> None:
    async with asyncio.timeout(60):
        while victim.connections > connections:  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.05)


FRAMES_A_CONNECTION = 1  # the broker ends a connection at the first frame that it cannot read
CONNECTIONS_AT_ONCE = 32


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("frames", [3_000, pytest.param(1_000_000, marks=pytest.mark.long)])
async def test_mutated_requests(victim: Victim, frames: int) -> None:
    draw = random.Random(3)
    corpus: list[tuple[Any, int, bytes]] = [
        (key, version, foreign_bytes(message))
        for key, version in every_version()
        for message in some(key, version, "request")
    ]
    before, open_before = victim.rss, victim.connections
    sent = 0

    async def attack() -> None:
        nonlocal sent
        while sent < frames:
            sent += FRAMES_A_CONNECTION
            await send_mutated(victim, draw, corpus)

    async with asyncio.TaskGroup() as attackers:
        for _ in range(CONNECTIONS_AT_ONCE):
            attackers.create_task(attack())
    await settled(victim, open_before)
    growth = victim.rss - before
    print(f"\n{sent} frames: RSS {growth / (1 << 20):+.1f} MiB")
    assert growth < GROWTH_BYTES_MAX
    assert latency_s(victim) < LATENCY_S_MAX


async def send_mutated(
    victim: Victim, draw: random.Random, corpus: list[tuple[Any, int, bytes]]
) -> None:
    """Send some damaged frames over one connection, which the broker may close at any of them."""
    reader, writer = await victim.connect()
    try:
        with contextlib.suppress(ConnectionError, TimeoutError):
            for _ in range(FRAMES_A_CONNECTION):
                key, version, body = draw.choice(corpus)
                head = struct.pack(">hhih", key, version, 1, 2) + b"me"
                tags = b"\0" if version >= SUPPORTED[key].flexible else b""
                frame = mutated(draw, head + tags + body)
                writer.write(struct.pack(">i", len(frame)) + frame)
            await writer.drain()
            async with asyncio.timeout(0.05):
                await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_large_frames_that_are_announced_and_never_come(victim: Victim) -> None:
    before, open_before = victim.rss, victim.connections
    opened = [await victim.connect() for _ in range(300)]
    for _, writer in opened:
        writer.write(struct.pack(">i", 100 << 20) + bytes(10))
        await writer.drain()
    assert latency_s(victim) < LATENCY_S_MAX
    assert victim.rss - before < GROWTH_BYTES_MAX
    for _, writer in opened:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    await settled(victim, open_before)


def framed(key: ApiKey, version: int, body: bytes) -> bytes:
    tags = b"\0" if version >= SUPPORTED[key].flexible else b""
    content = struct.pack(">hhih", key, version, 1, 2) + b"me" + tags + body
    return struct.pack(">i", len(content)) + content


async def test_a_name_that_is_repeated_ten_thousand_times(victim: Victim) -> None:
    """A request with 60,000 names once cost the broker 500 MiB and half a minute.

    Such a request is refused now. A request with 10,000 names gets a response.
    """
    before, times = victim.rss, ITEMS_MAX // 2
    reader, writer = await victim.connect()
    topics = bytearray()
    write_compact_array_count(topics, times)
    topics += (bytes(16) + b"\x05warm\0") * times
    writer.write(framed(ApiKey.METADATA, 12, topics + b"\0\0\0"))
    async with asyncio.timeout(10):
        (size,) = struct.unpack(">i", await reader.readexactly(4))
    assert size < 1_000
    assert victim.rss - before < GROWTH_BYTES_MAX
    assert latency_s(victim) < LATENCY_S_MAX
    writer.close()


async def test_answers_that_nobody_takes(victim: Victim) -> None:
    """Once, each client that did not read its response of 50 MiB cost the broker 50 MiB of memory."""
    count, size = 30, 900_000
    admin = AdminClient({"bootstrap.servers": f"{victim.host}:{victim.port}"})
    admin.create_topics([NewTopic("untaken", count, 1)])["untaken"].result(20)
    producer = ck.Producer({"bootstrap.servers": f"{victim.host}:{victim.port}"})
    for number in range(2 * count):
        producer.produce("untaken", bytes(size), partition=number % count)
    assert producer.flush(30) == 0
    before = victim.rss
    wanted = b"".join(struct.pack(">iqi", index, 0, 2 * size) for index in range(count))
    body = struct.pack(">iiiib", -1, 0, 1, 50 << 20, 0)  # consumer, no wait, at most 50 MiB
    body += struct.pack(">ih", 1, 7) + b"untaken" + struct.pack(">i", count) + wanted
    slow = [await victim.connect() for _ in range(12)]
    for _, writer in slow:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(framed(ApiKey.FETCH, 4, body))
        async with asyncio.timeout(10):
            while not arrived_bytes(writer):  # noqa: ASYNC110 - the kernel's state
                await asyncio.sleep(0.01)
    assert victim.rss - before < 2 * GROWTH_BYTES_MAX
    assert latency_s(victim) < LATENCY_S_MAX
    for _, writer in slow:
        writer.transport.abort()


def arrived_bytes(writer: asyncio.StreamWriter) -> int:
    """Return how many bytes have arrived in the socket and were not read."""
    room = bytearray(4)
    fcntl.ioctl(writer.get_extra_info("socket").fileno(), termios.FIONREAD, room)
    return int.from_bytes(room, sys.byteorder)


async def test_counts_that_promise_more_than_there_is(victim: Victim) -> None:
    before = victim.rss
    for claim in (b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\x80" * 60_000):
        reader, writer = await victim.connect()
        frame = struct.pack(">hhih", 3, 12, 1, -1) + b"\0" + claim
        writer.write(struct.pack(">i", len(frame)) + frame)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()
    assert victim.rss - before < GROWTH_BYTES_MAX
    assert latency_s(victim) < LATENCY_S_MAX


@pytest.fixture
def roomy() -> Iterator[Victim]:
    """Yield a broker that accepts somewhat more connections than by default."""
    plan = ClusterPlan(brokers=1, controllers=1, settings=("max.connections=12000",))
    with EmbeddedCluster(plan) as running:
        running.start()
        running.wait_ready()
        yield Victim(running)


IDLE_CONNECTIONS = 10_000
PARTITIONS = 1_000
IDLE_RSS_BYTES_MAX = 1 << 30
PRODUCE_P99_S_MAX = 0.05


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_ten_thousand_idle_connections_and_a_thousand_partitions(
    roomy: Victim, topic: str
) -> None:
    victim = roomy
    client = AdminClient({"bootstrap.servers": f"{victim.host}:{victim.port}"})
    client.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    before = victim.connections
    opened = []
    hello = struct.pack(">hhih", 18, 0, 1, -1)
    for _ in range(IDLE_CONNECTIONS):
        reader, writer = await victim.connect()
        writer.write(struct.pack(">i", len(hello)) + hello)
        opened.append((reader, writer))
    for reader, _ in opened:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        await reader.readexactly(size)
    assert victim.connections >= IDLE_CONNECTIONS
    p99_s = await asyncio.to_thread(produce_p99_s, victim, topic)
    rss = victim.rss
    print(
        f"\n{IDLE_CONNECTIONS} connections, {PARTITIONS} partitions: RSS {rss / (1 << 20):.0f} MiB,"
        f" p99 of a small produce {p99_s * 1000:.1f} ms"
    )
    assert rss < IDLE_RSS_BYTES_MAX
    assert p99_s < PRODUCE_P99_S_MAX
    for _, writer in opened:
        writer.close()
    await settled(victim, before)


def produce_p99_s(victim: Victim, topic: str, count: int = 2_000) -> float:
    """Return the 99th percentile latency of records that are produced one after the other, each to
    another partition.
    """
    config = {"bootstrap.servers": f"{victim.host}:{victim.port}", "linger.ms": 0, "acks": 1}
    producer = ck.Producer(config)
    took_s = []
    for number in range(count):
        began = time.perf_counter()
        producer.produce(topic, b"x" * 100, partition=number * 7 % PARTITIONS)
        assert producer.flush(20) == 0
        took_s.append(time.perf_counter() - began)
    return sorted(took_s[10:])[int(0.99 * (count - 10))]
