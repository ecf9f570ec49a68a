"""Producer ids, taken from blocks that the controller allocates with one call for each block."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc.aio

from odradek_broker.cluster.controller_client import ControllerClient, NoController
from odradek_protocol.identity import NO_PRODUCER_ID, BrokerEpoch, BrokerId, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb

_TIMEOUT_S: Final = 5.0


class ProducerIdSource:
    """Hands out producer ids that are unique in the cluster."""

    def __init__(self, *, broker_id: BrokerId, controllers: ControllerClient) -> None:
        self.broker_epoch: BrokerEpoch | None = None  # set after the registration
        self._broker_id = broker_id
        self._controllers = controllers
        self._next = 0
        self._end = 0
        self._refill: asyncio.Task[ErrorCode] | None = None

    async def next(self) -> tuple[ErrorCode, ProducerId]:
        """Return a new id, or COORDINATOR_NOT_AVAILABLE while no controller allocates a block."""
        while self._next == self._end:
            # All waiting callers share one call, and its failure.
            if self._refill is None:
                self._refill = asyncio.get_running_loop().create_task(
                    self._allocate(), name="allocate producer ids"
                )
                self._refill.add_done_callback(self._refilled)
            code = await asyncio.shield(self._refill)
            if code is not ErrorCode.NONE:
                return code, NO_PRODUCER_ID
        self._next += 1
        return ErrorCode.NONE, ProducerId(self._next - 1)

    def _refilled(self, _: asyncio.Task[ErrorCode]) -> None:
        self._refill = None

    async def _allocate(self) -> ErrorCode:
        if self.broker_epoch is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            response: pb.AllocateProducerIdsResponse = await self._controllers.call(
                "AllocateProducerIds",
                pb.AllocateProducerIdsRequest(
                    broker_id=self._broker_id, broker_epoch=self.broker_epoch
                ),
                timeout_s=_TIMEOUT_S,
            )
        except (NoController, grpc.aio.AioRpcError):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if response.error_code != ErrorCode.NONE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._next = response.producer_id_start
        self._end = response.producer_id_start + response.producer_id_count
        return ErrorCode.NONE
