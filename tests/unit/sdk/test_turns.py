"""While a client does long work, other tasks run on its event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from odradek.admin.admin import Admin
from odradek.cluster.cluster import Cluster
from odradek.cluster.metadata_cache import Change
from odradek.cluster.methods import GROUP_COMMIT, GROUP_FETCH
from odradek.cluster.turns import ITEMS_PER_TURN
from odradek.consumer.group_offsets import GroupOffsets
from odradek.partitions import TopicPartition
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import group_service_pb2 as group_pb

PARTITIONS = 20 * ITEMS_PER_TURN


class WideCluster:
    """A transport to a broker that has one topic of many partitions, and knows the offsets of any
    group.
    """

    async def call(self, endpoint: str, method: Any, request: Any, *, timeout_s: float) -> Any:
        if method is GROUP_COMMIT:
            results = [group_pb.GroupOffset(partition=o.partition) for o in request.offsets]
            return group_pb.CommitOffsetsResponse(offsets=results)
        if method is GROUP_FETCH:
            offsets = [group_pb.GroupOffset(partition=p, offset=7) for p in request.partitions]
            return group_pb.FetchOffsetsResponse(offsets=offsets)
        response = pb.MetadataResponse(metadata_offset=1)
        response.brokers.add(broker_id=1, grpc_endpoint="b1:1")
        topic = response.topics.add(name="wide", topic_id=b"1" * 16)
        for index in range(PARTITIONS):
            topic.partitions.add(partition=index, leader_id=1, leader_epoch=0)
        return response

    def open(self, endpoint: str, method: Any) -> Any:
        raise AssertionError("nothing is watched")

    async def close(self) -> None: ...


class GroupMember:
    """A member for which offsets are committed."""

    member_id = "member"
    member_epoch = 1
    is_active = True
    removal_count = 0

    def __init__(self) -> None:
        self.owned: dict[TopicPartition, bytes] = {}


def wide_cluster() -> Cluster:
    cluster = Cluster(["b1:1"], WideCluster())  # type: ignore[arg-type]
    cluster._is_started = True  # without the tasks that watch
    return cluster


async def turns_during(work: asyncio.Task[Any]) -> int:
    """Count the iterations of the event loop until the work is done."""
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


async def test_a_wide_topic_is_taken_over_in_turns() -> None:
    cluster = wide_cluster()
    work = asyncio.create_task(cluster.topic("wide", timeout_s=5))
    assert await turns_during(work) >= PARTITIONS // ITEMS_PER_TURN
    assert len(work.result().partitions) == PARTITIONS


@pytest.mark.parametrize("method", ["list_topics", "describe_topic"])
async def test_a_wide_topic_is_described_in_turns(method: str) -> None:
    admin = Admin(cluster=wide_cluster())
    work = asyncio.create_task(
        admin.list_topics() if method == "list_topics" else admin.describe_topic("wide")
    )
    assert await turns_during(work) >= PARTITIONS // ITEMS_PER_TURN


async def test_offsets_of_many_partitions_are_committed_and_looked_up_in_turns() -> None:
    offsets = GroupOffsets(wide_cluster(), "group", None)
    names = [TopicPartition("wide", index) for index in range(PARTITIONS)]
    member = GroupMember()
    commit = asyncio.create_task(offsets.commit(dict.fromkeys(names, (7, 0)), member))
    assert await turns_during(commit) >= 2 * PARTITIONS // ITEMS_PER_TURN
    assert not offsets.unknown(dict.fromkeys(names, (7, 0)))
    look_up = asyncio.create_task(offsets.committed(names))
    assert await turns_during(look_up) >= 2 * PARTITIONS // ITEMS_PER_TURN
    assert look_up.result() == dict.fromkeys(names, 7)


async def test_what_was_applied_is_announced_when_the_caller_is_cancelled() -> None:
    cluster = wide_cluster()
    announced: list[Change] = []
    cluster.subscribe(announced.append)
    response = pb.MetadataResponse(metadata_offset=1)
    for number in range(10 * ITEMS_PER_TURN):
        topic = response.topics.add(name=f"t-{number}", topic_id=number.to_bytes(16, "big"))
        topic.partitions.add(partition=0, leader_id=1, leader_epoch=0)
    work = asyncio.create_task(cluster._apply(response))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert cluster.cache.topics
    assert {name for change in announced for name in change.topics} == set(cluster.cache.topics)
