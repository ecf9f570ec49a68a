"""Our hand-written codecs of Produce and Fetch agree with an independent codec in every version."""

from __future__ import annotations

import contextlib
import random
import struct
from typing import Any

import pytest
from kio.serial import entity_reader

from odradek_protocol.identity import NO_TOPIC_ID, TopicId, TopicName
from odradek_protocol.kafka import fetch, produce
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.leader_hints import CurrentLeader, NodeEndpoint
from odradek_protocol.kafka.request_decoding import all_steps
from odradek_protocol.primitives import Malformed, write_uvarint
from tests.unit.kafka.foreign_messages import foreign_bytes, foreign_class, some

PRODUCE = range(SUPPORTED[ApiKey.PRODUCE].lowest, SUPPORTED[ApiKey.PRODUCE].highest + 1)
FETCH = range(SUPPORTED[ApiKey.FETCH].lowest, SUPPORTED[ApiKey.FETCH].highest + 1)


def name_of(topic: Any, field: str) -> tuple[TopicName | None, TopicId]:
    if hasattr(topic, field):
        return TopicName(getattr(topic, field)), NO_TOPIC_ID
    return None, TopicId(topic.topic_id.bytes if topic.topic_id else bytes(16))


@pytest.mark.parametrize("version", PRODUCE)
def test_produce_request(version: int) -> None:
    for message in some(ApiKey.PRODUCE, version, "request"):
        body = memoryview(bytearray(foreign_bytes(message)))
        request = produce.decode_produce(version, body)
        assert request.transactional_id == message.transactional_id
        assert request.acks == message.acks
        assert request.timeout_ms == message.timeout.total_seconds() * 1000
        assert len(request.topics) == len(message.topic_data)
        for (*ours, partitions), theirs in zip(request.topics, message.topic_data, strict=True):
            assert tuple(ours) == name_of(theirs, "name")
            assert partitions == [(p.index, p.records) for p in theirs.partition_data]
            assert all(records is None or not records.readonly for _, records in partitions)


@pytest.mark.parametrize("version", PRODUCE)
@pytest.mark.parametrize("with_extras", [True, False])
def test_produce_response(version: int, with_extras: bool) -> None:
    leader = CurrentLeader(7, 9) if with_extras else None
    nodes = (NodeEndpoint(7, "host", 9092, "rack"), NodeEndpoint(8, "h2", 1, None))
    topics = [
        produce.TopicResponse(
            TopicName("topic"),
            TopicId(bytes(range(16))),
            [
                produce.PartitionResponse(3, 0, 1 << 40, -1, 5),
                produce.PartitionResponse(4, 6, -1, -1, -1, "moved" * 40, leader),
                produce.PartitionResponse(5, 87, -1, -1, -1, "no key", None, (0, 3, 1 << 20)),
            ],
        ),
        produce.TopicResponse(TopicName("empty"), TopicId(bytes(16)), []),
    ]
    data = bytes(
        produce.encode_produce_response(
            version, topics, throttle_ms=11, endpoints=nodes if with_extras else ()
        )
    )
    read, size = entity_reader(foreign_class(ApiKey.PRODUCE, version, "response"))(data, 0)
    assert size == len(data)
    assert foreign_bytes(read) == data
    assert [t.partition_responses[0].base_offset for t in read.responses[:1]] == [1 << 40]
    if version >= 8:
        errors = read.responses[0].partition_responses[2].record_errors
        assert [one.batch_index for one in errors] == [0, 3, 1 << 20]
    if version >= 10:
        told = read.responses[0].partition_responses[1].current_leader
        assert (told.leader_id, told.leader_epoch) == ((7, 9) if with_extras else (-1, -1))
        assert len(read.node_endpoints) == (2 if with_extras else 0)


@pytest.mark.parametrize("version", FETCH)
def test_fetch_request(version: int) -> None:
    for message in some(ApiKey.FETCH, version, "request"):
        request = fetch.decode_fetch(version, memoryview(foreign_bytes(message)))
        if version >= 15:
            assert request.replica_id == message.replica_state.replica_id
        else:
            assert request.replica_id == message.replica_id
        assert request.wait_ms_max == message.max_wait.total_seconds() * 1000
        assert (request.bytes_min, request.bytes_max) == (message.min_bytes, message.max_bytes)
        assert request.isolation_level == message.isolation_level
        assert (request.session_id, request.session_epoch) == (
            getattr(message, "session_id", 0),
            getattr(message, "session_epoch", -1),
        )
        assert request.rack == getattr(message, "rack_id", "")
        for ours, theirs in zip(request.topics, message.topics, strict=True):
            assert (ours.name, ours.topic_id) == name_of(theirs, "topic")
            for mine, other in zip(ours.partitions, theirs.partitions, strict=True):
                assert mine == (
                    other.partition,
                    getattr(other, "current_leader_epoch", -1),
                    other.fetch_offset,
                    getattr(other, "last_fetched_epoch", -1),
                    getattr(other, "log_start_offset", -1),
                    other.partition_max_bytes,
                )
        gone = getattr(message, "forgotten_topics_data", ())
        assert [(f.name, f.topic_id, tuple(f.partitions)) for f in request.forgotten] == [
            (*name_of(f, "topic"), f.partitions) for f in gone
        ]


@pytest.mark.parametrize("version", FETCH)
@pytest.mark.parametrize("with_extras", [True, False])
def test_fetch_response(version: int, with_extras: bool) -> None:
    batches = [b"first batch" * 30, memoryview(b"second")]
    size = sum(map(len, batches))
    topics = [
        fetch.TopicData(
            TopicName("topic"),
            TopicId(bytes(range(16))),
            [
                fetch.PartitionData(0, 0, 100, 90, 5, [(7, 8), (9, 10)], -1, batches, size),
                fetch.PartitionData(
                    1,
                    6,
                    -1,
                    -1,
                    -1,
                    None,
                    3,
                    (),
                    0,
                    CurrentLeader(2, 4) if with_extras else None,
                    (5, 77) if with_extras else None,
                ),
            ],
        )
    ]
    nodes = (NodeEndpoint(2, "leader", 9092, None),)
    buffers, told = fetch.encode_fetch_response(
        version,
        topics,
        throttle_ms=1,
        error_code=0,
        session_id=12,
        endpoints=nodes if with_extras else (),
    )
    data = b"".join(buffers)
    assert told == len(data)
    assert any(one is batches[1] for one in buffers), "the records were copied"
    read, end = entity_reader(foreign_class(ApiKey.FETCH, version, "response"))(data, 0)
    assert end == len(data)
    assert foreign_bytes(read) == data
    first, second = read.responses[0].partitions
    assert first.records == b"".join(batches)
    assert [(one.producer_id, one.first_offset) for one in first.aborted_transactions] == [
        (7, 8),
        (9, 10),
    ]
    assert second.error_code == 6
    if version >= 12:
        expected = (5, 77) if with_extras else (-1, -1)
        assert (second.diverging_epoch.epoch, second.diverging_epoch.end_offset) == expected
        assert second.current_leader.leader_id == (2 if with_extras else -1)
    if version >= 16:
        assert len(read.node_endpoints) == int(with_extras)


@pytest.mark.parametrize(
    ("key", "decode"),
    [(ApiKey.PRODUCE, produce.decode_produce), (ApiKey.FETCH, fetch.decode_fetch)],
)
def test_what_is_cut_or_too_long_is_malformed(key: ApiKey, decode: Any) -> None:
    for version in PRODUCE if key is ApiKey.PRODUCE else FETCH:
        data = foreign_bytes(next(some(key, version, "request")))
        for end in range(len(data)):
            with pytest.raises(Malformed):
                decode(version, memoryview(data[:end]))
        with pytest.raises(Malformed):
            decode(version, memoryview(data + b"\0"))


def test_produce_requests_of_many_partitions_are_taken_apart_in_steps() -> None:
    topic = struct.pack(">h", 6) + b"orders"
    partitions = b"".join(struct.pack(">iii", n, 1, 0)[:9] for n in range(1000))
    body = struct.pack(">hhii", -1, 1, 1000, 1) + topic + struct.pack(">i", 1000) + partitions
    steps = produce.decode_produce_steps(7, memoryview(body))
    for _ in range(1000 // produce.PARTITIONS_A_STEP):
        next(steps)
    decoded = all_steps(steps)
    assert decoded == produce.decode_produce(7, memoryview(body))
    assert len(decoded.topics[0].partitions) == 1000


@pytest.mark.parametrize("flexible", [False, True])
def test_as_many_topics_and_partitions_as_allowed_are_taken(flexible: bool) -> None:
    count = produce.PARTITIONS_MAX // 2
    if flexible:
        many = bytearray()
        write_uvarint(many, count + 1)
        topics = bytes(many) + b"\2t\2\0\0\0\0\0\0\0" * count
        body = b"\0" + struct.pack(">hi", 1, 1000) + topics + b"\0"
    else:
        topic = struct.pack(">hciii", 1, b"t", 1, 0, -1)
        body = struct.pack(">hhii", -1, 1, 1000, count) + topic * count
    request = produce.decode_produce(9 if flexible else 7, memoryview(body))
    assert len(request.topics) == count


@pytest.mark.parametrize("flexible", [False, True])
def test_topics_without_partitions_are_counted(flexible: bool) -> None:
    """A frame of 100 MiB may contain 17 million such topics."""
    count = produce.PARTITIONS_MAX + 1
    if flexible:
        head = b"\0" + struct.pack(">hi", 1, 1000)
        many = bytearray()
        write_uvarint(many, count + 1)
        body = head + bytes(many) + b"\2t\1\0" * count + b"\0"
    else:
        head = struct.pack(">hhi", -1, 1, 1000)
        body = head + struct.pack(">i", count) + struct.pack(">hci", 1, b"t", 0) * count
    with pytest.raises(Malformed, match="more than"):
        produce.decode_produce(9 if flexible else 7, memoryview(body))


def test_no_bytes_do_anything_but_decode_or_be_refused() -> None:
    draw = random.Random(5)
    for key, decode in (
        (ApiKey.PRODUCE, produce.decode_produce),
        (ApiKey.FETCH, fetch.decode_fetch),
    ):
        for version in PRODUCE if key is ApiKey.PRODUCE else FETCH:
            data = foreign_bytes(next(some(key, version, "request")))
            for _ in range(300):
                mutated = bytearray(data)
                for _ in range(draw.randint(1, 4)):
                    mutated[draw.randrange(len(mutated))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
                with contextlib.suppress(Malformed):
                    decode(version, memoryview(mutated))
