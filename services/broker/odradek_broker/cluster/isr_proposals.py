"""AlterPartition: sends the ISR proposals of all leaders on this broker, with one request in flight.

Proposals that shrink an ISR wait 20 ms for further proposals, because a lost follower usually concerns many partitions
at once. All other proposals are sent in the next iteration of the event loop. If no response arrives, the replica gets
REQUEST_TIMED_OUT, keeps its proposal and sends it again (rule R16 of partition/README.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc.aio

from odradek_broker.cluster.controller_client import ControllerClient, NoController
from odradek_broker.partition.effects import ProposeIsr
from odradek_protocol.identity import BrokerEpoch, BrokerId, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_runtime.logs import event_log

_GATHER_S: Final = 0.02
_TIMEOUT_S: Final = 2.0
_PARTITIONS_MAX: Final = 500
_log = event_log(__name__)

OnResponse = Callable[[ErrorCode], None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    proposal: ProposeIsr
    on_response: OnResponse


class IsrProposals:
    """Sends the ISR proposals of this broker's partition leaders to the controller."""

    def __init__(
        self, *, broker_id: BrokerId, controllers: ControllerClient, on_stale: Callable[[], None]
    ) -> None:
        self.broker_epoch: BrokerEpoch | None = None  # set after this broker has registered
        self._broker_id = broker_id
        self._controllers = controllers
        self._on_stale = on_stale
        self._waiting: dict[TopicIdPartition, _Waiting] = {}
        self._wake = asyncio.Event()
        self._is_urgent = False

    def propose(
        self,
        partition: TopicIdPartition,
        proposal: ProposeIsr,
        *,
        is_urgent: bool,
        on_response: OnResponse,
    ) -> None:
        """Queue a proposal for the next request. A newer proposal of a partition replaces one that was not sent yet."""
        self._waiting[partition] = _Waiting(proposal, on_response)
        self._is_urgent |= is_urgent
        self._wake.set()

    async def run(self) -> None:
        """Send queued proposals until cancelled."""
        while True:
            await self._wake.wait()
            if not self._is_urgent:
                await asyncio.sleep(_GATHER_S)
            batch = dict(list(self._waiting.items())[:_PARTITIONS_MAX])
            for partition in batch:
                del self._waiting[partition]
            if not self._waiting:
                self._wake.clear()
                self._is_urgent = False
            await self._send(batch)

    async def _send(self, batch: dict[TopicIdPartition, _Waiting]) -> None:
        assert self.broker_epoch is not None, "an ISR proposal before the registration"
        request = pb.AlterPartitionRequest(
            broker_id=self._broker_id,
            broker_epoch=self.broker_epoch,
            partitions=[_item(partition, waiting.proposal) for partition, waiting in batch.items()],
        )
        codes = dict.fromkeys(batch, ErrorCode.REQUEST_TIMED_OUT)
        try:
            response: pb.AlterPartitionResponse = await self._controllers.call(
                "AlterPartition", request, timeout_s=_TIMEOUT_S
            )
        except (NoController, grpc.aio.AioRpcError) as error:
            _log.warning(
                "Controller did not respond to ISR proposals; they will be sent again",
                count=len(batch),
                reason=str(error),
            )
        else:
            if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
                self._on_stale()
            elif len(response.partitions) != len(batch) and response.error_code == ErrorCode.NONE:
                _log.error(
                    "Controller's response does not have one result for each ISR proposal",
                    proposals=len(batch),
                    results=len(response.partitions),
                )
            elif response.error_code == ErrorCode.NONE:
                for partition, result in zip(batch, response.partitions, strict=True):
                    codes[partition] = ErrorCode.received(result.error_code)
        for partition, waiting in batch.items():
            waiting.on_response(codes[partition])


def _item(partition: TopicIdPartition, proposal: ProposeIsr) -> pb.AlterPartitionItem:
    return pb.AlterPartitionItem(
        partition=common_pb2.TopicIdPartition(
            topic_id=partition.topic_id, partition=partition.partition
        ),
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        isr=[
            pb.ReplicaWithEpoch(broker_id=broker_id, broker_epoch=broker_epoch)
            for broker_id, broker_epoch in proposal.isr
        ],
        is_recovering=proposal.is_recovering,
    )
