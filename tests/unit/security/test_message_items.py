"""The number of items in a protobuf message is counted in its bytes, before it is decoded."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from odradek_broker.rpc.intake import refusal_steps
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin_pb
from odradek_protocol.rpc.v1 import group_service_pb2 as group_pb


def refusal(message: Message | bytes, items_max: int, kind: Any = None) -> str | None:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    steps = refusal_steps((kind or message).DESCRIPTOR, data, items_max)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            text: str | None = done.value
            return text


NAMES = admin_pb.DeleteTopicsRequest(names=["a"] * 300, topic_ids=[b"i" * 16] * 200)
PACKED = admin_pb.DescribeLogDirsRequest(broker_ids=[1, 300, 70_000, -1] * 100)
NESTED = admin_pb.CreateTopicsRequest(
    topics=[
        admin_pb.NewTopic(
            name="orders",
            assignments=[admin_pb.ReplicaAssignment(broker_ids=[1, 2, 3])] * 2,
            configs={"a": "b", "c": "d"},
        )
    ]
    * 10
)
OFFSETS = group_pb.CommitOffsetsRequest(
    group_id="g", offsets=[{"partition": {"topic": "t", "partition": 3}, "offset": 2**60}] * 500
)


@pytest.mark.parametrize(
    ("message", "items"),
    [(NAMES, 500), (PACKED, 400), (NESTED, 10 * (1 + 2 + 6 + 2)), (OFFSETS, 500)],
)
def test_items_are_counted_at_all_levels(message: Message, items: int) -> None:
    assert refusal(message, items) is None
    told = refusal(message, items - 1)
    assert told is not None
    assert f"more than {items - 1} items" in told


def test_long_strings_are_refused_and_bytes_are_not() -> None:
    assert refusal(admin_pb.DeleteTopicsRequest(topic_ids=[b"x" * 40_000]), 9) is None
    assert refusal(admin_pb.DeleteTopicsRequest(names=["x" * 32_767]), 9) is None
    assert refusal(admin_pb.DeleteTopicsRequest(names=["x" * 32_768]), 9) is not None


@pytest.mark.parametrize(
    "data",
    [b"\x0a", b"\x0a\x05ab", b"\x0b\x0c", b"\x0f", b"\xff" * 11, b"\x09\x00", b"\x0d", b"\x08\x80"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    assert refusal(data, 9, admin_pb.DeleteTopicsRequest) is not None


def test_a_field_repeated_for_ever_is_refused() -> None:
    assert refusal(b"\x18\x01" * 1000, 9, admin_pb.DeleteTopicsRequest) is not None
