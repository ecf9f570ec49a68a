"""Hands out producer ids, in blocks that the controller allocates with one call each."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import grpc.aio

from odradek_broker.cluster.controller_client import ControllerClient, NoController
from odradek_protocol.identity import NO_PRODUCER_ID, BrokerEpoch, BrokerId, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_runtime.logs import event_log

_TIMEOUT_S: Final = 5.0
_REFILL_BELOW: Final = 500
_RETRY_S: Final = 0.2
_PRODUCER_ID_END: Final = 1 << 63
_log = event_log(__name__)


class ProducerIdSource:
    """Provides producer ids that are unique in the cluster.

    The next block is requested before the current one is used up. So new producers, and transactions whose producer
    epochs are exhausted, still get ids during a failover of the controller.
    """

    def __init__(self, *, broker_id: BrokerId, controllers: ControllerClient) -> None:
        self.broker_epoch: BrokerEpoch | None = None  # set after this broker has registered
        self._broker_id = broker_id
        self._controllers = controllers
        self._blocks: deque[range] = deque()
        self._refill: asyncio.Task[ErrorCode] | None = None
        # The time of the last failed allocation, on the event loop's clock.
        self._failed_at_s = float("-inf")

    async def next(self) -> tuple[ErrorCode, ProducerId]:
        """Return a new producer id, or COORDINATOR_NOT_AVAILABLE while no controller allocates a block. Waits for a
        block if none is left.
        """
        while not self._blocks:
            # All waiting callers share one call, and its error.
            code = await asyncio.shield(self._refilling())
            if code is not ErrorCode.NONE:
                return code, NO_PRODUCER_ID
        (producer_id,) = self.take(1)
        return ErrorCode.NONE, producer_id

    def take(self, count: int) -> list[ProducerId]:
        """Return up to `count` new producer ids without waiting. If few ids remain, another block is requested in the
        background.
        """
        taken: list[ProducerId] = []
        while self._blocks and len(taken) < count:
            block = self._blocks[0]
            missing = count - len(taken)
            taken += map(ProducerId, block[:missing])
            if len(block) > missing:
                self._blocks[0] = block[missing:]
            else:
                self._blocks.popleft()
        if sum(map(len, self._blocks)) < _REFILL_BELOW:
            loop = asyncio.get_running_loop()
            if self._refill is None and loop.time() - self._failed_at_s > _RETRY_S:
                self._refilling()
        return taken

    def _refilling(self) -> asyncio.Task[ErrorCode]:
        if self._refill is None:
            self._refill = asyncio.get_running_loop().create_task(
                self._allocate(), name="allocate producer ids"
            )
            self._refill.add_done_callback(self._refilled)
        return self._refill

    def _refilled(self, task: asyncio.Task[ErrorCode]) -> None:
        self._refill = None
        if task.cancelled() or task.exception() or task.result() is not ErrorCode.NONE:
            self._failed_at_s = task.get_loop().time()

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
        start = response.producer_id_start
        if not 0 <= start < start + response.producer_id_count <= _PRODUCER_ID_END:
            _log.error(
                "Controller's response has no valid range of producer ids",
                start=start,
                count=response.producer_id_count,
            )
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._blocks.append(range(start, start + response.producer_id_count))
        return ErrorCode.NONE
