"""A partition leader asks the coordinators of all brokers about an open transaction."""

from __future__ import annotations

import pytest

from odradek_broker.coordination.producer_resolver import LinkedProducerResolver
from odradek_broker.replication.hanging_transactions import OpenTransaction
from odradek_broker.replication.streams.follower_stream import StreamBroken
from odradek_broker.transactions.messages import Resolution
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    ProducerId,
    TopicIdPartition,
)
from odradek_protocol.metadata.records import RegisterBroker, RestartClass
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb
from tests.unit.replication.partitions_in_memory import EPOCH, ME
from tests.unit.transactions.test_transaction_coordinator import (
    DATA,
    SHARD,
    World,
    coordinating,
)

PARTITION = TopicIdPartition(DATA.topic_id, DATA.partition)


def resolver(
    world: World, answers: dict[int, pb.ResolveProducersResponse]
) -> LinkedProducerResolver:
    """Return a resolver on broker 1.

    The other brokers are those in `answers`, and broker 9, which is unreachable.
    """
    for broker_id in (ME, *answers, 9):
        world.partitions.record(
            RegisterBroker(
                broker_id=BrokerId(broker_id),
                incarnation_id=IncarnationId(bytes([broker_id]) * 16),
                directory_ids=(DirectoryId(bytes([broker_id]) * 16),),
                restart_class=RestartClass.CLEAN,
                endpoints=(),
                fenced=False,
                broker_epoch=BrokerEpoch(broker_id),
            )
        )

    async def call(
        broker_id: BrokerId, _host: str, _port: int, request: pb.ResolveProducersRequest
    ) -> pb.ResolveProducersResponse:
        assert request.producers
        if broker_id not in answers:
            raise StreamBroken("cut off")
        return answers[broker_id]

    return LinkedProducerResolver(
        broker_id=ME,
        cluster_id=ClusterId("c"),
        coordinator=world.coordinator,
        partitions=world.partitions,  # type: ignore[arg-type]  # of LocalPartitions what it needs
        endpoint_of=lambda broker_id: (f"b{broker_id}", 1),
        call=call,
    )


def answer(resolution: int, partition: int = 7) -> pb.ResolveProducersResponse:
    return pb.ResolveProducersResponse(
        coordinators=[
            pb.ResolvingCoordinator(
                coordinator_partition=partition,
                coordinator_epoch=2,
                resolutions=[resolution],  # type: ignore[list-item]  # a newer release has others
            )
        ]
    )


@pytest.mark.parametrize(
    ("number", "resolution"),
    [
        (pb.PRODUCER_RESOLUTION_UNKNOWN, Resolution.UNKNOWN),
        (pb.PRODUCER_RESOLUTION_COMMITTED, Resolution.COMMITTED),
        (99, Resolution.LIVE),
    ],
)
async def test_all_coordinators_that_respond_are_reported(
    number: int, resolution: Resolution
) -> None:
    async with coordinating() as world:
        identity = await world.begin()
        asked = OpenTransaction(PARTITION, identity.producer_id, identity.epoch)
        resolved = await resolver(world, {2: answer(number)}).resolve([asked])
    assert [tuple(one) for one in resolved] == [
        (SHARD, EPOCH, [Resolution.LIVE]),
        (7, 2, [resolution]),
    ]


async def test_a_transaction_that_ended_is_known_by_its_outcome() -> None:
    async with coordinating() as world:
        identity = await world.begin()
        await world.end(identity, is_tv2=True)
        await world.acknowledge()
        asked = OpenTransaction(PARTITION, identity.producer_id, identity.epoch)
        stranger = OpenTransaction(PARTITION, ProducerId(1), identity.epoch)
        (resolved,) = await resolver(world, {}).resolve([asked, stranger])
    assert resolved.resolutions == [Resolution.COMMITTED, Resolution.UNKNOWN]
