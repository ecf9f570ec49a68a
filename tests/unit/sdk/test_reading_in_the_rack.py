"""A consumer with a rack reads from the replica that the leader names (KIP-392)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from odradek import Client, TopicPartition
from odradek.testing import MemoryCluster, memory_broker
from odradek.testing.memory_state import MemoryState
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from tests.unit.sdk.numbered_records import fill, numbers, read, until

LEADER, FOLLOWER = 1, 0


class RackOfTheFollower:
    """Simulated brokers: the leader sends consumers to broker `named`, and the follower has the leader's records."""

    def __init__(self, named: int) -> None:
        self.named = named
        self.reads_of: list[int] = []
        self._look = memory_broker._look

    def look(
        self,
        cluster: MemoryState,
        broker_id: int,
        session: memory_broker._Session,
        name: TopicPartition,
    ) -> pb.FetchPartitionData | None:
        self.reads_of.append(broker_id)
        if broker_id != LEADER:
            return self._look(cluster, LEADER, session, name)
        item = session.wanted.pop(name)
        return pb.FetchPartitionData(
            topic=name.topic,
            partition=name.partition,
            fetch_id=item.fetch_id,
            next_offset=item.offset,
            preferred_read_replica=self.named,
        )


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """Return a client of a cluster whose brokers have the ids 0 and 1, and whose topic `t` is led by broker 1."""
    cluster = MemoryCluster(brokers=1)
    cluster.endpoints[FOLLOWER] = "memory-0:9090"
    cluster.alive.add(FOLLOWER)
    cluster.create_topic("t")
    cluster.move_leader("t", 0, LEADER)
    async with cluster.client() as client:
        yield client


async def test_the_named_replica_may_be_broker_0(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = RackOfTheFollower(FOLLOWER)
    monkeypatch.setattr(memory_broker, "_look", rack.look)
    await fill(client, 5)
    async with client.consumer("t", auto_offset_reset="earliest", client_rack="near") as consumer:
        assert numbers(await read(consumer, 5)) == list(range(5))
    assert rack.reads_of[:2] == [LEADER, FOLLOWER]


async def test_a_replica_whose_address_is_unknown_does_not_end_the_reading(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = RackOfTheFollower(named=7)
    monkeypatch.setattr(memory_broker, "_look", rack.look)
    await fill(client, 5)
    async with client.consumer("t", auto_offset_reset="earliest", client_rack="near") as consumer:
        assert not await consumer.getmany(300)
        await until(lambda: rack.reads_of.count(LEADER) > 1)
        (progress,) = consumer._planner.partitions.values()
        await until(lambda: progress.failures > 1)  # the pause grows
        rack.named = FOLLOWER
        assert numbers(await read(consumer, 5)) == list(range(5))
