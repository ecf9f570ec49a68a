"""A Kafka connection: order of responses, pipelining, back-pressure, limits, and how it is closed."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from odradek_broker.kafka import connection_times
from odradek_broker.kafka.connection import KafkaConnection
from odradek_broker.kafka.counters import KafkaCounters
from odradek_broker.kafka.response_line import ResponseBuffer, ResponseWriter
from odradek_broker.kafka.services import LEAST_BYTES, UnsentResponses
from odradek_protocol.identity import TopicName
from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.metadata.records import ConfigResourceType
from tests.unit.kafka import fake_broker
from tests.unit.kafka.wire_client import WAIT_S_MAX, eventually, listening

PRODUCE_3 = (
    struct.pack(">hhi", -1, 1, 1000)  # no transactional id, acks, timeout
    + struct.pack(">ih", 1, 6)
    + b"orders"
    + struct.pack(">iii", 1, 0, 61)
    + bytes(61)
)


def fetch_12(wait_ms: int = 60_000, *, bytes_max: int = 1 << 20) -> bytes:
    return (
        struct.pack(">iiiibii", -1, wait_ms, 1, bytes_max, 0, 0, -1)
        + b"\x02\x07orders\x02"
        + struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 1 << 20)
        + b"\0\0\x01\x01\0"
    )


async def test_answers_come_in_the_order_of_the_requests() -> None:
    async with listening() as server:
        client = await server.connect()
        sent = [
            client.send(key, version)
            for key, version in (
                (ApiKey.METADATA, 12),
                (ApiKey.API_VERSIONS, 3),
                (ApiKey.LIST_OFFSETS, 7),
                (ApiKey.DESCRIBE_CLUSTER, 1),
            )
            * 10
        ]
        assert [(await client.receive())[0] for _ in sent] == sent


@pytest.mark.interpreted
async def test_the_responses_to_requests_that_arrived_together_are_one_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sends: list[int] = []
    write = ResponseWriter.write

    def counted(writer: ResponseWriter, buffers: Sequence[ResponseBuffer]) -> None:
        sends.append(len(buffers))
        write(writer, buffers)

    monkeypatch.setattr(ResponseWriter, "write", counted)
    async with listening() as server:
        client = await server.connect()
        sent = [client.send(ApiKey.PRODUCE, 3, PRODUCE_3) for _ in range(7)]
        assert [(await client.receive())[0] for _ in sent] == sent
    # A buffer for each, with its head; no more than five requests are in progress.
    assert sends == [5, 2]


async def test_responses_that_wait_for_their_turn_are_sent_before_the_connection_closes() -> None:
    async with listening() as server:
        client = await server.connect()
        sent = [client.send(ApiKey.PRODUCE, 3, PRODUCE_3) for _ in range(2)]
        client.send(ApiKey.PRODUCE, 99, PRODUCE_3)
        assert [(await client.receive())[0] for _ in sent] == sent
        assert await client.is_closed()


async def test_produces_are_begun_before_those_ahead_of_them_are_answered() -> None:
    async with listening() as server:
        server.partitions.holds = True
        client = await server.connect()
        sent = [client.send(ApiKey.PRODUCE, 3, PRODUCE_3) for _ in range(4)]
        await eventually(lambda: len(server.partitions.held) == 4)
        for release in reversed(server.partitions.held):  # the last one is replicated first
            release()
        assert [(await client.receive())[0] for _ in sent] == sent


async def test_no_more_than_five_requests_are_under_way() -> None:
    async with listening() as server:
        server.partitions.holds = True
        client = await server.connect()
        sent = [client.send(ApiKey.PRODUCE, 3, PRODUCE_3) for _ in range(40)]
        await eventually(lambda: len(server.partitions.held) == 5)
        other = await server.connect()  # a whole iteration of the event loop and more
        other.send(ApiKey.API_VERSIONS, 3)
        await other.receive()
        assert len(server.partitions.held) == 5
        for number in range(40):
            await eventually(lambda n=number: len(server.partitions.held) > n)
            server.partitions.held[number]()
        assert [(await client.receive())[0] for _ in sent] == sent


async def test_no_request_begins_in_the_middle_of_another_ones_response() -> None:
    """Otherwise a response could lead to a request, that one to a response, and so on until the stack is full."""
    async with listening() as server:
        server.partitions.holds = True
        client = await server.connect()
        sent = [client.send(ApiKey.PRODUCE, 3, PRODUCE_3) for _ in range(12)]
        await eventually(lambda: len(server.partitions.held) == 5)
        for number in range(5):
            server.partitions.held[number]()
            assert len(server.partitions.held) == 5
        server.partitions.holds = False
        await eventually(lambda: len(server.partitions.appended) == 12)
        assert [(await client.receive())[0] for _ in sent] == sent


async def test_a_response_that_comes_after_the_connection_was_lost_is_dropped() -> None:
    async with listening() as server:
        server.partitions.holds = True
        client = await server.connect()
        client.send(ApiKey.PRODUCE, 3, PRODUCE_3)
        await eventually(lambda: server.partitions.held)
        await client.close()
        await eventually(lambda: not server.listeners.counters.connections)
        server.partitions.held[0]()
        assert not server.listeners.counters.failures


async def test_what_follows_a_waiting_fetch_is_not_begun() -> None:
    async with listening() as server:
        server.partitions.fetch_waits = True
        client = await server.connect()
        client.send(ApiKey.FETCH, 12, fetch_12())
        client.send(ApiKey.PRODUCE, 3, PRODUCE_3)
        await eventually(lambda: server.partitions.fetched)
        other = await server.connect()
        other.send(ApiKey.API_VERSIONS, 3)
        await other.receive()
        assert not server.partitions.appended
        server.partitions.never.set()
        assert [(await client.receive())[0] for _ in range(2)] == [1, 2]
        assert len(server.partitions.appended) == 1


async def test_a_lost_connection_cancels_what_it_waited_for() -> None:
    async with listening() as server:
        server.partitions.fetch_waits = True
        client = await server.connect()
        client.send(ApiKey.FETCH, 12, fetch_12())
        await eventually(lambda: server.partitions.fetched)
        await client.close()
        await eventually(lambda: server.partitions.cancelled == 1)


async def test_acks_0_has_no_answer_and_holds_nothing_up() -> None:
    async with listening() as server:
        client = await server.connect()
        client.send(ApiKey.PRODUCE, 3, PRODUCE_3.replace(b"\0\1\0\0\3\xe8", b"\0\0\0\0\3\xe8", 1))
        client.send(ApiKey.API_VERSIONS, 3)
        assert (await client.receive())[0] == 2
        assert len(server.partitions.appended) == 1


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (3, [("metadata.version", 1, 3)]),
        (4, [("group.version", 0, 1), ("metadata.version", 1, 3), ("transaction.version", 0, 2)]),
    ],
)
async def test_features_that_may_be_off_are_not_told_to_clients_that_fail_at_them(
    version: int, told: list[tuple[str, int, int]]
) -> None:
    """Java clients before 3.9 throw if the lowest level of a feature is 0 (KAFKA-17492)."""
    async with listening() as server:
        client = await server.connect()
        client.send(ApiKey.API_VERSIONS, version)
        answer = messages.ApiVersionsResponse.decode((await client.receive())[1], version=version)
        supported = answer.supported_features or []
        assert [(one.name, one.min_version, one.max_version) for one in supported] == told
        finalized = [(one.name, one.max_version_level) for one in answer.finalized_features]
        assert finalized == [("group.version", 1), ("metadata.version", 2)]


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 99, 0, 1, -1),
        struct.pack(">hhih", ApiKey.PRODUCE, 2, 1, -1),
        struct.pack(">hhih", ApiKey.METADATA, 1, 1, -1) + b"\0",
        b"\0",
    ],
    ids=["unknown key", "version too low", "cut message", "no header"],
)
async def test_what_cannot_be_understood_ends_the_connection(frame: bytes) -> None:
    async with listening() as server:
        client = await server.connect()
        client.send_frame(frame)
        assert await client.is_closed()
        other = await server.connect()
        other.send(ApiKey.API_VERSIONS, 3)
        await other.receive()


async def test_a_frame_beyond_the_limit_ends_the_connection() -> None:
    async with listening(socket_request_bytes_max=2000) as server:
        client = await server.connect()
        client.writer.write(struct.pack(">i", 2001))
        assert await client.is_closed()


@pytest.mark.parametrize("name", ["max.connections", "max.connections.per.ip"])
async def test_a_limit_of_connections_that_is_set_at_run_time_is_obeyed(name: str) -> None:
    async with listening() as server:
        configs = server.partitions.image.configs
        configs[ConfigResourceType.BROKER, ""] = {name: "1"}
        first, second = await server.connect(), await server.connect()
        assert await second.is_closed()
        configs[ConfigResourceType.BROKER, "1"] = {name: "2"}
        third = await server.connect()
        for client in (first, third):
            client.send(ApiKey.API_VERSIONS, 3)
            await client.receive()


async def test_connections_are_bounded_by_address_and_in_all() -> None:
    async with listening(connections_max_per_ip=2) as server:
        first, second, third = [await server.connect() for _ in range(3)]
        assert await third.is_closed()
        for client in (first, second):
            client.send(ApiKey.API_VERSIONS, 3)
            await client.receive()
        await first.close()
        fourth = None
        async with asyncio.timeout(WAIT_S_MAX):
            while fourth is None:
                candidate = await server.connect()
                candidate.send(ApiKey.API_VERSIONS, 3)
                try:
                    await candidate.receive()
                    fourth = candidate
                except (asyncio.IncompleteReadError, ConnectionError):
                    continue


async def test_who_sends_nothing_is_closed_and_who_stops_within_a_frame_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening() as server:
        silent, stalled = await server.connect(), await server.connect()
        stalled.send(ApiKey.API_VERSIONS, 3)
        await stalled.receive()
        monkeypatch.setattr(connection_times, "FIRST_FRAME_MS_MAX", 50)
        monkeypatch.setattr(connection_times, "STALLED_FRAME_MS_MAX", 50)
        stalled.writer.write(struct.pack(">i", 1000) + b"half")
        assert await silent.is_closed()
        assert await stalled.is_closed()


async def test_who_does_not_take_its_answers_is_not_served_and_then_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_times, "STALLED_WRITE_MS_MAX", 50)
    async with listening() as server:
        server.partitions.records[TopicName("orders"), 0] = [bytes(8 << 20)]
        client = await server.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(20):
            client.send(ApiKey.FETCH, 12, fetch_12(0))
        await eventually(lambda: not server.listeners.connection_count)
        assert len(server.partitions.fetched) < 20


async def test_the_more_answers_nobody_takes_the_smaller_are_the_next() -> None:
    served = fake_broker.services()
    served.unsent = UnsentResponses(bytes_max=8 << 20)
    async with listening(served) as server:
        server.partitions.records[TopicName("orders"), 0] = [bytes(24 << 20)]
        slow = [await server.connect() for _ in range(3)]
        for client in slow:
            unsent_bytes = served.unsent.total_bytes
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(ApiKey.FETCH, 12, fetch_12(0, bytes_max=6 << 20))
            # A response is written in pieces, and counts as unsent once the socket takes no more of it.
            await eventually(lambda n=unsent_bytes: served.unsent.total_bytes > n + (8 << 20))
        assert server.partitions.fetched_bytes_max == [6 << 20, LEAST_BYTES, LEAST_BYTES]
        assert served.unsent.total_bytes > 8 << 20
        for client in slow:
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            await client.receive()
        await eventually(lambda: not served.unsent.total_bytes)
        slow[0].writer.transport.pause_reading()  # type: ignore[attr-defined]
        slow[0].send(ApiKey.FETCH, 12, fetch_12(0))
        await eventually(lambda: served.unsent.total_bytes)
        slow[0].writer.transport.abort()
        await eventually(lambda: not served.unsent.total_bytes)


async def test_the_more_is_being_read_the_smaller_are_the_next_answers() -> None:
    served = fake_broker.services()
    served.unsent = UnsentResponses(bytes_max=8 << 20)
    async with listening(served) as server:
        server.partitions.fetch_waits = True
        clients = [await server.connect() for _ in range(3)]
        for number, client in enumerate(clients, 1):
            client.send(ApiKey.FETCH, 12, fetch_12(0, bytes_max=6 << 20))
            await eventually(lambda n=number: len(server.partitions.fetched_bytes_max) == n)
        assert server.partitions.fetched_bytes_max == [6 << 20, 2 << 20, LEAST_BYTES]
        for client in clients:
            client.writer.transport.abort()
        await eventually(lambda: not served.unsent.total_bytes)


async def test_throttled_clients_wait_and_are_told() -> None:
    served = fake_broker.services()
    served.quotas.quotas_changed({(("client-id", "me"),): {"producer_byte_rate": 10.0}})
    async with listening(served) as server:
        client = await server.connect()
        client.send(ApiKey.PRODUCE, 3, PRODUCE_3)
        client.send(ApiKey.PRODUCE, 3, PRODUCE_3)
        client.send(ApiKey.PRODUCE, 3, PRODUCE_3)
        answers = [await client.receive() for _ in range(2)]
        throttled = [struct.unpack(">i", body[-4:])[0] for _, body in answers]
        assert throttled[0] == 0
        assert throttled[1] > 1000
        assert len(server.partitions.appended) == 2


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (ApiKey.LIST_OFFSETS, 7, None),  # of generated code
        (ApiKey.METADATA, 12, None),  # kept encoded from the second time on
        (ApiKey.PRODUCE, 3, PRODUCE_3),
        (ApiKey.FETCH, 12, fetch_12(0)),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else "",
)
async def test_the_time_that_requests_take_counts_against_their_quota(
    key: ApiKey, version: int, body: bytes | None
) -> None:
    served = fake_broker.services()
    async with listening(served) as server:
        client = await server.connect()
        client.send(key, version, body)
        await client.receive()
        # a ten-thousandth of a per cent: 1 us a second
        served.quotas.quotas_changed({(("client-id", "me"),): {"request_percentage": 1e-4}})
        client.send(key, version, body)
        await client.receive()
        assert server.listeners.counters.throttled_ms > 1_000


async def test_the_time_that_a_request_waits_does_not_count() -> None:
    served = fake_broker.services()
    served.quotas.quotas_changed({(("client-id", "me"),): {"request_percentage": 10.0}})
    async with listening(served) as server:
        server.partitions.fetch_waits = True
        client = await server.connect()
        client.send(ApiKey.FETCH, 12, fetch_12())
        await eventually(lambda: server.partitions.fetched)
        await asyncio.sleep(0.3)  # of ten per cent, three seconds' worth
        server.partitions.never.set()
        await client.receive()
        assert server.listeners.counters.throttled_ms == 0


@pytest.mark.parametrize("name", ["KAFKA_OTHER", "PLAINTEXT"])
async def test_several_listeners_tell_their_own_addresses(name: str) -> None:
    async with listening(listeners=f"KAFKA://127.0.0.1:0,{name}://127.0.0.1:0") as server:
        first = await server.connect("KAFKA")
        first.send(ApiKey.DESCRIBE_CLUSTER, 1)
        told = messages.DescribeClusterResponse.decode((await first.receive())[1][1:], version=1)
        assert [(one.host, one.port) for one in told.brokers] == [("broker-1", 9092)]
        other = await server.connect(name)
        other.send(ApiKey.DESCRIBE_CLUSTER, 1)
        told = messages.DescribeClusterResponse.decode((await other.receive())[1][1:], version=1)
        assert told.brokers == [], "a broker without that listener was told"


async def test_metadata_of_all_topics_as_librdkafka_asks_for_it() -> None:
    """librdkafka writes four bytes for the null array, so the flags after it are shifted by three
    bytes.
    """
    async with listening() as server:
        client = await server.connect()
        client.send(ApiKey.METADATA, 13, bytes.fromhex("00 00 00 00 01 00 00"))
        told = messages.MetadataResponse.decode((await client.receive())[1][1:], version=13)
        assert {one.name for one in told.topics} == {"orders", "payments"}


async def test_what_is_counted() -> None:
    async with listening() as server:
        client = await server.connect()
        for _ in range(3):
            client.send(ApiKey.API_VERSIONS, 3)
            await client.receive()
        stranger = await server.connect()
        stranger.send_frame(b"\0")
        assert await stranger.is_closed()
        await eventually(lambda: server.listeners.connection_count == 1)
        samples = {
            (one.name, *one.labels.values()): one.value
            for family in server.listeners.counters.families()
            for one in family.samples
        }
        prefix = "odradek_broker_kafka_"
        assert samples[f"{prefix}requests_total", "api_versions"] == 3
        assert samples[f"{prefix}connections",] == 1
        assert samples[f"{prefix}connections_refused_total",] == 1
        assert samples[f"{prefix}request_failures_total",] == 0


async def test_large_frames_share_a_bound_and_wait_for_each_other() -> None:
    async with listening(queued_request_bytes_max=1 << 20) as server:
        large = PRODUCE_3[:-65] + struct.pack(">i", 3 << 20) + bytes(3 << 20)
        head = struct.pack(">hhih", ApiKey.PRODUCE, 3, 1, -1)
        frame = struct.pack(">i", len(head) + len(large)) + head + large
        stuck = await server.connect()
        stuck.writer.write(frame[: 2 << 20])  # beyond the bound, and then nothing more
        arriving = server.listeners.arriving
        await eventually(lambda: arriving.total_bytes > 1 << 20)
        waiting = await server.connect()
        waiting.writer.write(frame)
        await eventually(lambda: arriving.total_bytes >= 2 << 20)
        small = await server.connect()
        small.send(ApiKey.API_VERSIONS, 3)
        await small.receive()
        assert not server.partitions.appended
        await stuck.close()
        await waiting.receive()
        assert len(server.partitions.appended[0][2]) == 3 << 20
        await eventually(lambda: arriving.total_bytes == 0)


async def test_a_short_throttle_does_not_end_a_longer_one() -> None:
    """Requests that began together may have quotas of different clients."""
    owner: Any = SimpleNamespace(scratch=bytearray(1024), counters=KafkaCounters())
    connection = KafkaConnection(owner, 0)
    connection.mute_for(30_000)
    assert connection._mute is not None
    end_s = connection._mute.when()
    connection.mute_for(1)
    assert connection._mute.when() == end_s
    connection._mute.cancel()
