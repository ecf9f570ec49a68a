"""Which heartbeats of the consumer protocol (KIP-848) are refused, and as what: as in Kafka."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from odradek_broker.groups.messages import ConsumerHeartbeat
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.groups.test_consumer_group import Group


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "  "}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": 0}, ErrorCode.NONE),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2, "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_first_heartbeats_are_checked_as_in_kafka(fields: dict[str, Any], error: ErrorCode) -> None:
    beat = ConsumerHeartbeat(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topics=("a",),
        owned={},
    )
    assert Group().send(replace(beat, **fields)).error is error


@pytest.mark.parametrize("epoch", [1, -1, -2])
def test_a_static_member_is_told_who_holds_its_instance(epoch: int) -> None:
    """A member that was replaced is fenced, also when it leaves; an unknown instance is an unknown member."""
    group = Group()
    join = ConsumerHeartbeat(
        group_id="g",
        member_id="first",
        member_epoch=0,
        instance_id="i",
        rebalance_timeout_ms=60_000,
        subscribed_topics=("a",),
        owned={},
    )
    group.send(join)
    group.send(ConsumerHeartbeat(group_id="g", member_id="first", member_epoch=-2, instance_id="i"))
    group.send(replace(join, member_id="second"))
    later = ConsumerHeartbeat(group_id="g", member_id="first", member_epoch=epoch, instance_id="i")
    assert group.send(later).error is ErrorCode.FENCED_INSTANCE_ID
    stranger = replace(later, member_id="second", instance_id="j")
    refused = group.send(stranger)
    assert (refused.error, refused.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, None)
