"""For the messages of Kafka's protocol that the C codec handles, it agrees with the Python code,
for any bytes and in every version.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from odradek_broker.log.log_config import LogConfig
from odradek_broker.replication import batch_checks
from odradek_protocol.kafka import frames, group_messages, messages, produce
from odradek_protocol.kafka.api_keys import ITEMS_MAX, SUPPORTED, ApiKey
from odradek_protocol.kafka.leader_hints import CurrentLeader
from odradek_protocol.kafka.request_decoding import all_steps
from odradek_protocol.kafka.response_encoding import encode_message
from odradek_protocol.primitives import Malformed, write_string
from odradek_protocol.records import Record, encode_batch
from tests.unit.protocol.codecs import _codec, with_crc
from tests.unit.protocol.produce_requests import NAMES, damaged, produce_body

VERSIONS = range(SUPPORTED[ApiKey.PRODUCE].lowest, SUPPORTED[ApiKey.PRODUCE].highest + 1)
CASES = 300


def by_python(decode: Any, *arguments: Any) -> Any:
    """Return what the Python code decodes; None if it refuses the bytes."""
    try:
        return decode(*arguments)
    except Malformed:
        return None


@pytest.mark.parametrize("version", VERSIONS)
def test_produce_requests_agree(version: int) -> None:
    draw = random.Random(version)
    taken = 0
    for number in range(CASES):
        data = produce_body(draw, version)
        if number % 2:
            data = damaged(draw, data)
        body = memoryview(bytearray(data))
        usual = _codec.usual_produce(version, body)
        if usual is None:
            continue
        taken += 1
        expected = by_python(all_steps, produce.decode_produce_steps(version, body))
        assert expected is not None, data.hex()
        assert produce.ProduceRequest(*usual) == expected
        for _, _, partitions in usual[3]:
            assert all(records is None or not records.readonly for _, records in partitions)
    assert taken > CASES // 10


def test_a_plain_produce_is_taken_in_every_version() -> None:
    for version in VERSIONS:
        out = bytearray(b"\0" if version >= produce.FLEXIBLE else b"\xff\xff")
        out += struct.pack(">hi", 1, 30_000)
        if version >= produce.FLEXIBLE:
            out += b"\2" + (bytes(16) if version >= produce.WITH_TOPIC_IDS else b"\2t")
            out += b"\2" + struct.pack(">i", 4) + b"\3xy\0\0\0"
        else:
            out += struct.pack(">i", 1) + b"\0\1t" + struct.pack(">iii", 1, 4, 2) + b"xy"
        usual = _codec.usual_produce(version, memoryview(out))
        name = None if version >= produce.WITH_TOPIC_IDS else "t"
        assert usual == (None, 1, 30_000, [(name, bytes(16), [(4, b"xy")])])


@pytest.mark.parametrize("version", VERSIONS)
def test_produce_responses_agree(version: int) -> None:
    draw = random.Random(version)
    taken = 0
    for _ in range(CASES):
        topics: list[Any] = [
            (
                None if version >= produce.WITH_TOPIC_IDS else draw.choice(NAMES),
                draw.randbytes(16),
                [
                    draw.choice(
                        [
                            (index, 0, 1 << 40, -1, 5),
                            (index, 6, -1, 1_700_000_000_000, (1 << 63) - 1),
                            produce.PartitionResponse(index, 0, 5, -1, 0),
                            produce.PartitionResponse(
                                index, 6, -1, -1, -1, "moved", CurrentLeader(7, 9)
                            ),
                        ]
                        if draw.random() < 0.1
                        else [(index, 0, index << 33, -1, 0)]
                    )
                    for index in range(draw.choice([0, 1, 2, 60, 65]))
                ],
            )
            for _ in range(draw.choice([0, 1, 1, 2, 9]))
        ]
        throttle_ms = draw.choice([0, 11, (1 << 31) - 1])
        usual = _codec.usual_produced(version, topics, throttle_ms)
        if usual is None:
            continue
        taken += 1
        steps = produce.encode_produce_steps(version, topics, throttle_ms=throttle_ms)
        assert usual == bytes(all_steps(steps))
    assert taken > CASES // 10


def test_numbers_that_fit_no_field_are_left_to_python() -> None:
    for result in (
        (1 << 31, 0, 0, 0, 0),
        (0, 1 << 15, 0, 0, 0),
        (0, 0, 1 << 63, 0, 0),
        (0, 0, 0, 0),
        (0, 0, 0, 0, None),
        [0, 0, 0, 0, 0],
    ):
        topics: Any = [("t", bytes(16), [result])]
        assert _codec.usual_produced(7, topics, 0) is None
    assert _codec.usual_produced(7, [], 1 << 31) is None
    assert _codec.usual_produced(7, [("\ud800", bytes(16), [])], 0) is None
    assert _codec.usual_produced(13, [(None, bytes(15), [])], 0) is None


def test_headers_agree() -> None:
    draw = random.Random(1)
    taken = 0
    for _ in range(20 * CASES):
        key = draw.choice([*SUPPORTED, *SUPPORTED, 4, 127, 1000, -1])
        versions = SUPPORTED.get(key)
        version = draw.randrange(-1, 20) if versions is None else draw.choice(versions[:2])
        name = draw.choice([None, "", "me", "\u044f", "x" * 300])
        head = bytearray(struct.pack(">hhi", key, version, draw.randrange(1 << 31)))
        write_string(head, name)
        data = damaged(
            draw, bytes(head) + draw.choice([b"\0rest", b"\0", b"", b"\1\0\1x", b"rest"])
        )
        usual = _codec.usual_header(data, frames._VERSIONS)
        if usual is None:
            continue
        taken += 1
        assert usual == by_python(frames.read_request_header, data), data.hex()
    assert taken > 5 * CASES


def test_batches_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(2)
    config = LogConfig(max_message_bytes=2000)
    taken = 0
    for _ in range(2 * CASES):
        records = [
            Record(None, b"v" * draw.choice([0, 5, 900]), (), draw.choice([0, 1000, 1 << 40]))
            for _ in range(draw.choice([1, 2, 30]))
        ]
        producer_id = draw.choice([-1, 5])
        batch = bytearray(
            encode_batch(
                records,
                producer_id=producer_id,
                producer_epoch=draw.choice([-1, 0, 3]),
                base_sequence=draw.choice([-1, 0, (1 << 31) - 1]),
                transactional=producer_id >= 0 and draw.random() < 0.2,
            )
        )
        for _ in range(draw.choice([0, 0, 1, 2])):
            batch[draw.randrange(len(batch))] = draw.randrange(256)
        data = with_crc(bytes(batch)) if draw.random() < 0.8 else bytes(batch)
        data = draw.choice([data, data, data, data * 2, data[:-1], data + b"x"])
        is_internal = draw.random() < 0.3
        monkeypatch.setattr(batch_checks, "usual_batch", lambda _: None)
        expected = batch_checks.check_client_batches(data, config, 1000, is_internal)
        monkeypatch.setattr(batch_checks, "usual_batch", _codec.usual_batch)
        usual = _codec.usual_batch(data)
        taken += usual is not None
        actual = batch_checks.check_client_batches(data, config, 1000, is_internal)
        if isinstance(expected, batch_checks.BatchRefused):
            assert isinstance(actual, batch_checks.BatchRefused)
            assert (actual.error, actual.message) == (expected.error, expected.message)
        else:
            assert actual == expected, data.hex()
    assert taken > CASES // 2


def test_bounds_are_those_of_the_python_code() -> None:
    too_many = bytearray(b"\xff\xff" + struct.pack(">hi", 1, 0) + struct.pack(">i", ITEMS_MAX + 1))
    too_many += (b"\0\1t" + struct.pack(">i", 0)) * (ITEMS_MAX + 1)
    assert _codec.usual_produce(7, memoryview(too_many)) is None
    # As many partitions as are allowed, and one more.
    for partitions, is_taken in ((ITEMS_MAX - 1, True), (ITEMS_MAX, False)):
        body = bytearray(b"\xff\xff" + struct.pack(">hii", 1, 0, 1) + b"\0\1t")
        body += struct.pack(">i", partitions) + struct.pack(">ii", 0, -1) * partitions
        assert (_codec.usual_produce(7, memoryview(body)) is not None) is is_taken
        expected = by_python(all_steps, produce.decode_produce_steps(7, memoryview(body)))
        assert (expected is not None) is is_taken


def test_wrong_arguments_are_refused() -> None:
    for call in (
        lambda: _codec.usual_header(b"", None),  # type: ignore[arg-type]
        lambda: _codec.usual_header("", b""),  # type: ignore[arg-type]
        lambda: _codec.usual_produce("7", memoryview(b"")),  # type: ignore[arg-type]
        lambda: _codec.usual_produced(7, [], None),  # type: ignore[arg-type]
        lambda: _codec.usual_batch(None),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            call()
    assert _codec.usual_produce(7, b"") is None  # type: ignore[arg-type]
    assert _codec.usual_produced(7, None, 0) is None  # type: ignore[arg-type]
    assert _codec.usual_produced(7, [None], 0) is None  # type: ignore[list-item]


TEXTS = ["", "g", "ключ", "m" * 36, "n" * 249, "n" * 250, "t" * 32_767]


def offset_commit(draw: random.Random) -> Any:
    topic = messages.OffsetCommitRequest.OffsetCommitRequestTopic
    return messages.OffsetCommitRequest(
        group_id=draw.choice(TEXTS),
        generation_id_or_member_epoch=draw.choice([-1, 0, (1 << 31) - 1]),
        member_id=draw.choice(TEXTS),
        group_instance_id=draw.choice([None, *TEXTS]),
        retention_time_ms=draw.choice([-1, 5]),
        topics=[
            topic(
                name=draw.choice(TEXTS[:6]),
                topic_id=messages.uuid_of(draw.randbytes(16)),
                partitions=[
                    topic.OffsetCommitRequestPartition(
                        partition_index=draw.choice([-1, 0, 7]),
                        committed_offset=draw.choice([-1, 0, 1 << 40]),
                        committed_leader_epoch=draw.choice([-1, 3]),
                        committed_metadata=draw.choice([None, *TEXTS]),
                    )
                    for _ in range(draw.choice([0, 1, 1, 3]))
                ],
            )
            for _ in range(draw.choice([0, 1, 1, 3]))
        ],
    )


def heartbeat(draw: random.Random) -> Any:
    return messages.HeartbeatRequest(
        group_id=draw.choice(TEXTS),
        generation_id=draw.choice([-1, 0, 9]),
        member_id=draw.choice(TEXTS),
        group_instance_id=draw.choice([None, *TEXTS]),
    )


def consumer_heartbeat(draw: random.Random) -> Any:
    owned = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
    return messages.ConsumerGroupHeartbeatRequest(
        group_id=draw.choice(TEXTS),
        member_id=draw.choice(TEXTS),
        member_epoch=draw.choice([-2, 0, 9]),
        instance_id=draw.choice([None, *TEXTS]),
        rack_id=draw.choice([None, "east"]),
        rebalance_timeout_ms=draw.choice([-1, 30_000]),
        subscribed_topic_names=draw.choice([None, None, None, ["t"]]),
        subscribed_topic_regex=draw.choice([None, "t.*"]),
        server_assignor=draw.choice([None, "uniform"]),
        topic_partitions=draw.choice(
            [None, None, None, [owned(topic_id=messages.uuid_of(bytes(16)), partitions=[1, 2])]]
        ),
    )


GROUP_REQUESTS = [
    (ApiKey.OFFSET_COMMIT, offset_commit, group_messages.decode_offset_commit),
    (ApiKey.HEARTBEAT, heartbeat, group_messages.decode_heartbeat),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, consumer_heartbeat, group_messages.decode_consumer_heartbeat),
]


def plain(message: Any) -> Any:
    """The fields of a message that handlers read, whatever its class."""
    if isinstance(message, group_messages.OffsetCommit):
        topics = [
            (name, id_, [tuple(item) for item in items]) for name, id_, items in message.topics
        ]
        return tuple(getattr(message, name) for name in message.__struct_fields__[:4]), topics
    names = (
        group_messages.HeartbeatMessage.__struct_fields__
        if isinstance(message, group_messages.HeartbeatMessage)
        else group_messages.ConsumerHeartbeatMessage.__struct_fields__
    )
    return tuple(getattr(message, name) for name in names)


class Noted:
    """Calls the codec's function `usual_message`, and records whether it decoded the last body."""

    has_taken = False

    def __call__(self, shape: bytes, body: memoryview) -> Any:
        fields = _codec.usual_message(shape, body)
        self.has_taken = fields is not None
        return fields


@pytest.mark.parametrize(("key", "draw_one", "decode"), GROUP_REQUESTS)
def test_requests_of_groups_agree(
    key: ApiKey, draw_one: Any, decode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(key)
    for version in range(SUPPORTED[key].lowest, SUPPORTED[key].highest + 1):
        taken = 0
        for number in range(CASES // 4):
            data = bytes(encode_message(draw_one(draw), version))
            body = memoryview(damaged(draw, data) if number % 2 else data)
            with monkeypatch.context() as without:
                without.setattr(group_messages, "usual_message", lambda *_: None)
                expected = by_python(decode, version, body)
            with monkeypatch.context() as noting:
                noted = Noted()
                noting.setattr(group_messages, "usual_message", noted)
                actual = by_python(decode, version, body)
            taken += noted.has_taken
            if expected is None:
                assert actual is None, body.hex()
            elif key == ApiKey.CONSUMER_GROUP_HEARTBEAT and version == 0 and actual is not None:
                # The generated class has the default of a field that version 0 lacks.
                assert plain(actual)[:7] == plain(expected)[:7]
            else:
                assert actual is not None, body.hex()
                assert plain(actual) == plain(expected), body.hex()
        assert (taken > CASES // 40) is (
            key != ApiKey.OFFSET_COMMIT or version in group_messages.COMMIT_SHAPES
        )


def test_long_commits_are_decoded_in_steps_to_the_same_message() -> None:
    draw = random.Random(5)
    for version in range(2, 11):
        body = bytes(encode_message(offset_commit(draw), version))
        expected = by_python(group_messages.decode_offset_commit, version, body)
        steps = group_messages.decode_offset_commit_steps(version, body)
        actual = by_python(all_steps, steps)
        assert (actual is None) == (expected is None)
        if actual is not None and expected is not None:
            assert plain(actual) == plain(expected)
            assert actual.retention_ms == expected.retention_ms


def test_responses_of_groups_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    monkeypatch.setattr(group_messages, "usual_encoding", _codec.usual_encoding)

    def both(encode: Any, *arguments: Any) -> tuple[Any, Any]:
        with monkeypatch.context() as without:
            without.setattr(group_messages, "usual_encoding", lambda *_: None)
            expected = encode(*arguments)
        return bytes(encode(*arguments)), expected

    for _ in range(CASES // 10):
        topics: Any = [
            (
                draw.choice(TEXTS[:6]),
                draw.randbytes(16),
                [(index, draw.choice([0, 3, 25])) for index in range(draw.choice([0, 1, 9, 400]))],
            )
            for _ in range(draw.choice([0, 1, 1, 130]))
        ]
        for version in group_messages.COMMITTED_SHAPES:
            named = [
                ("", id_, codes) if version == 10 else (name, id_, codes)
                for name, id_, codes in topics
            ]
            actual, expected = both(group_messages.encode_offset_commit_response, version, named)
            assert actual == expected
        for version in group_messages.BEATEN_SHAPES:
            actual, expected = both(group_messages.encode_heartbeat_response, version, 27)
            assert actual == expected
        fields = (
            draw.choice([0, 25]),
            draw.choice([None, "ключ"]),
            draw.choice([None, *TEXTS]),
            draw.choice([-1, 0, 7]),
            5_000,
        )
        response = messages.ConsumerGroupHeartbeatResponse(
            **dict(
                zip(
                    (
                        "error_code",
                        "error_message",
                        "member_id",
                        "member_epoch",
                        "heartbeat_interval_ms",
                    ),
                    fields,
                    strict=True,
                )
            ),
            assignment=None,
        )
        for version in group_messages.CONSUMER_BEATEN_SHAPES:
            usual = group_messages.encode_consumer_heartbeat_response(version, *fields)
            assert usual is None or usual == encode_message(response, version)
            assert usual is not None or len(fields[2] or "") > 4_000


def test_messages_that_do_not_fit_their_shape_are_left_to_python() -> None:
    for shape, fields in (
        (b"h", (1 << 15,)),
        (b"h", (-1 - (1 << 15),)),
        (b"i", (1 << 31,)),
        (b"q", (1 << 63,)),
        (b"h", ("1",)),
        (b"h", ()),
        (b"h", (1, 2)),
        (b"h", [1]),
        (b"u", (bytes(15),)),
        (b"s", (None,)),
        (b"c", (None,)),
        (b"s", ("\ud800",)),
        (b"s", ("x" * 5000,)),
        (b"(h)", ((1,),)),
        (b"(h)", ([1],)),
        (b"(h)", ([(1,)] * 5000,)),
    ):
        assert _codec.usual_encoding(shape, fields) is None, (shape, fields)  # type: ignore[arg-type]
    assert _codec.usual_encoding(b"hS(q)0!-", (1, None, [(2,), (3,)])) == bytes.fromhex(
        "0001ffff0000000200000000000000020000000000000003" + "00ff00"
    )
    assert _codec.usual_message(b"hS(q)0!-", bytes.fromhex("0001ffff0000000000ff00")) == (
        1,
        None,
        [],
    )
    for body in ("0001ffff0000000000ff", "0001ffff0000000001ff00", "0001fffe0000000000ff00"):
        assert _codec.usual_message(b"hS(q)0!-", bytes.fromhex(body)) is None
    too_many = struct.pack(">i", ITEMS_MAX + 1) + bytes(2 * (ITEMS_MAX + 1))
    assert _codec.usual_message(b"(h)", too_many) is None
    assert _codec.usual_message(b"(h)", struct.pack(">i", ITEMS_MAX) + bytes(2 * ITEMS_MAX))


def test_wrong_shapes_are_refused() -> None:
    for shape in (b"x", b"(", b"(h", b"(h]", b")", b"(((((h)))))", b"h\0"):
        with pytest.raises(ValueError, match="not a shape"):
            _codec.usual_message(shape, b"")
        with pytest.raises(ValueError, match="not a shape"):
            _codec.usual_encoding(shape, ())
    with pytest.raises(TypeError):
        _codec.usual_message("h", b"")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _codec.usual_message(b"h", "")  # type: ignore[arg-type]
