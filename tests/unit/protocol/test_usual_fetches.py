"""Fetch requests that the C codec handles and responses that are encoded at once agree with the code for all forms."""

from __future__ import annotations

import random
from typing import Any

import pytest

from odradek_protocol.kafka import fetch
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.leader_hints import CurrentLeader, NodeEndpoint
from odradek_protocol.kafka.request_decoding import all_steps
from tests.unit.protocol.codecs import _codec
from tests.unit.protocol.fetch_requests import fetch_body
from tests.unit.protocol.produce_requests import damaged
from tests.unit.protocol.test_usual_messages import by_python

VERSIONS = range(SUPPORTED[ApiKey.FETCH].lowest, SUPPORTED[ApiKey.FETCH].highest + 1)
CASES = 60


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_requests_agree(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(version)
    taken = 0

    def noted(shape: bytes, body: memoryview) -> Any:
        nonlocal taken
        fields = _codec.usual_message(shape, body)
        taken += fields is not None
        return fields

    monkeypatch.setattr(fetch, "usual_message", noted)
    for number in range(CASES):
        data = fetch_body(draw, version)
        body = memoryview(damaged(draw, data) if number % 2 else data)
        expected = by_python(all_steps, fetch.decode_fetch_steps(version, body))
        assert by_python(fetch.decode_fetch, version, body) == expected, body.hex()
    assert (taken > CASES // 10) is (version in fetch.FETCH_SHAPES)


def partition(draw: random.Random, *, is_plain: bool) -> fetch.PartitionData:
    size = draw.choice([0, 0, 1, 100, 126, 127, 20_000])
    return fetch.PartitionData(
        draw.choice([0, 5, (1 << 31) - 1]),
        draw.choice([0, 0, 6]),
        draw.choice([-1, 0, 1 << 40]),
        draw.choice([-1, 0, 1 << 40]),
        draw.choice([-1, 0, 1 << 40]),
        None if is_plain else draw.choice([None, [], [(7, 12)]]),
        draw.choice([-1, 3]),
        (bytes(size),) if draw.random() < 0.5 else (bytes(size // 2), bytes(size - size // 2)),
        size,
        None if is_plain else draw.choice([None, CurrentLeader(1, 2)]),
        None if is_plain else draw.choice([None, (3, 40)]),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_responses_agree(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(version)
    taken = 0

    def both(**arguments: Any) -> tuple[tuple[Any, int], tuple[Any, int]]:
        actual = fetch.encode_fetch_response(version, topics, **arguments)
        with monkeypatch.context() as without:
            without.setattr(fetch, "_usual_response", lambda *_: None)
            return actual, fetch.encode_fetch_response(version, topics, **arguments)

    for _ in range(CASES):
        is_plain = draw.random() < 0.8
        topics = [
            fetch.TopicData(
                None if version >= fetch.WITH_TOPIC_IDS else draw.choice(["a", "ключ"]),  # type: ignore[arg-type]
                draw.randbytes(16),  # type: ignore[arg-type]
                [
                    partition(draw, is_plain=is_plain)
                    for _ in range(draw.choice([0, 1, 1, 1, 3, 62, 70]))
                ],
            )
            for _ in range(draw.choice([0, 1, 1, 1, 2, 2]))
        ]
        endpoints = [NodeEndpoint(1, "host", 9092, None)] if draw.random() < 0.1 else []
        (buffers, size), (expected, expected_size) = both(
            throttle_ms=draw.choice([0, 9]),
            error_code=draw.choice([0, 70]),
            session_id=draw.choice([0, 77]),
            endpoints=endpoints,
        )
        data = b"".join(buffers)
        assert data == b"".join(expected)
        assert size == expected_size == len(data)
        usual = fetch._usual_response(version, topics, 0, 0, 0)
        taken += usual is not None
    assert taken > CASES // 10
