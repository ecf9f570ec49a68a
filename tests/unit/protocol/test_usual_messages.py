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
from odradek_protocol.kafka import frames, produce
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.leader_hints import CurrentLeader
from odradek_protocol.kafka.request_decoding import ITEMS_MAX, all_steps
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
