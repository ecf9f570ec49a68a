"""Asks all transaction coordinators of the cluster about transactions that have been open in a partition for too long.

Brokers that do not respond in time are missing in the result. Therefore the caller ends transactions only if the
responses cover all partitions of `__transaction_state`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from odradek_broker.coordination.transaction_coordinator import TransactionCoordinator
from odradek_broker.replication.hanging_transactions import CoordinatorResolutions, OpenTransaction
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.streams.follower_stream import StreamBroken
from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.messages import Resolution
from odradek_protocol.identity import (
    BrokerId,
    ClusterId,
    LeaderEpoch,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicIdPartition,
)
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb

_TIMEOUT_S: Final = 5.0
_TO_WIRE: Final = {
    Resolution.UNKNOWN: pb.PRODUCER_RESOLUTION_UNKNOWN,
    Resolution.LIVE: pb.PRODUCER_RESOLUTION_LIVE,
    Resolution.COMMITTED: pb.PRODUCER_RESOLUTION_COMMITTED,
    Resolution.ABORTED: pb.PRODUCER_RESOLUTION_ABORTED,
}
_FROM_WIRE: Final = {number: resolution for resolution, number in _TO_WIRE.items()}
CallResolve = Callable[
    [BrokerId, str, int, pb.ResolveProducersRequest], Awaitable[pb.ResolveProducersResponse]
]
"""A function (broker id, host, port, request) that calls ResolveProducers at a broker. It raises StreamBroken."""


class LinkedProducerResolver:
    """Asks the transaction coordinators by gRPC calls between brokers. It implements ProducerResolver."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        cluster_id: ClusterId,
        coordinator: TransactionCoordinator,
        partitions: LocalPartitions,
        endpoint_of: Callable[[BrokerId], tuple[str, int] | None],
        call: CallResolve,
    ) -> None:
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._coordinator = coordinator
        self._partitions = partitions
        self._endpoint_of = endpoint_of
        self._call = call

    async def resolve(
        self, transactions: Sequence[OpenTransaction]
    ) -> Sequence[CoordinatorResolutions]:
        """Ask all brokers about the transactions. Return the responses that arrived within `_TIMEOUT_S`."""
        request = pb.ResolveProducersRequest(
            cluster_id=self._cluster_id,
            producers=[
                pb.ResolveProducer(
                    identity=pb.ProducerIdentity(
                        producer_id=transaction.producer_id,
                        producer_epoch=transaction.producer_epoch,
                    ),
                    partition=common_pb2.TopicIdPartition(
                        topic_id=transaction.partition.topic_id,
                        partition=transaction.partition.partition,
                    ),
                )
                for transaction in transactions
            ],
        )
        brokers = list(self._partitions.image.brokers)
        responses = await asyncio.gather(*(self._ask(broker, request) for broker in brokers))
        return [
            CoordinatorResolutions(
                PartitionIndex(coordinator.coordinator_partition),
                LeaderEpoch(coordinator.coordinator_epoch),
                # An unknown value, which a newer release may send, is treated as a transaction that is still open.
                [_FROM_WIRE.get(number, Resolution.LIVE) for number in coordinator.resolutions],
            )
            for response in responses
            if response is not None
            for coordinator in response.coordinators
            if len(coordinator.resolutions) == len(transactions)
        ]

    async def _ask(
        self, broker_id: BrokerId, request: pb.ResolveProducersRequest
    ) -> pb.ResolveProducersResponse | None:
        if broker_id == self._broker_id:
            return await respond_to_resolve(self._coordinator, request)
        endpoint = self._endpoint_of(broker_id)
        if endpoint is None:
            return None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._call(broker_id, *endpoint, request)
        except (StreamBroken, TimeoutError):
            return None


async def respond_to_resolve(
    coordinator: TransactionCoordinator, request: pb.ResolveProducersRequest
) -> pb.ResolveProducersResponse:
    """Return what each active coordinator of this broker knows about the transactions in the request."""
    resolved = await coordinator.resolve(
        [
            (
                ProducerIdentity(
                    ProducerId(producer.identity.producer_id),
                    ProducerEpoch(producer.identity.producer_epoch),
                ),
                TopicIdPartition(
                    TopicId(producer.partition.topic_id),
                    PartitionIndex(producer.partition.partition),
                ),
            )
            for producer in request.producers
        ]
    )
    return pb.ResolveProducersResponse(
        coordinators=[
            pb.ResolvingCoordinator(
                coordinator_partition=partition,
                coordinator_epoch=epoch,
                resolutions=[_TO_WIRE[resolution] for resolution in resolutions],
            )
            for partition, epoch, resolutions in resolved
        ]
    )
