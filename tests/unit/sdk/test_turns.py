"""Long work of a client gives turns to everything else on its event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from odradek.admin.admin import Admin
from odradek.cluster.cluster import Cluster
from odradek.cluster.metadata_cache import Change
from odradek.cluster.turns import ITEMS_PER_TURN
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb

PARTITIONS = 20 * ITEMS_PER_TURN


class WideCluster:
    """A transport to a broker that has one wide topic."""

    async def call(self, endpoint: str, method: Any, request: Any, *, timeout_s: float) -> Any:
        response = pb.MetadataResponse(metadata_offset=1)
        response.brokers.add(broker_id=1, grpc_endpoint="b1:1")
        topic = response.topics.add(name="wide", topic_id=b"1" * 16)
        for index in range(PARTITIONS):
            topic.partitions.add(partition=index, leader_id=1, leader_epoch=0)
        return response

    def open(self, endpoint: str, method: Any) -> Any:
        raise AssertionError("nothing is watched")

    async def close(self) -> None: ...


def wide_cluster() -> Cluster:
    cluster = Cluster(["b1:1"], WideCluster())  # type: ignore[arg-type]
    cluster._is_started = True  # without the tasks that watch
    return cluster


async def turns_during(work: asyncio.Task[Any]) -> int:
    """Count the turns that the loop has until the work is done."""
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
