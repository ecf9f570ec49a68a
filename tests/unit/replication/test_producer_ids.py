"""Producer ids are allocated in blocks, and all callers that wait for a block wait for one
request.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from odradek_broker.cluster.controller_client import ControllerClient, NoController
from odradek_broker.cluster.producer_ids import ProducerIdSource
from odradek_protocol.identity import NO_PRODUCER_ID, BrokerEpoch, BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb


class Controllers:
    """A controller that responds when the test says so."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[pb.AllocateProducerIdsResponse]] = []

    async def call(self, *_: Any, **__: Any) -> pb.AllocateProducerIdsResponse:
        self.calls.append(asyncio.get_running_loop().create_future())
        return await self.calls[-1]


def source_of(controllers: Controllers) -> ProducerIdSource:
    source = ProducerIdSource(
        broker_id=BrokerId(1), controllers=cast(ControllerClient, controllers)
    )
    source.broker_epoch = BrokerEpoch(5)
    return source


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_all_who_wait_hear_of_one_failure_at_once() -> None:
    """If each caller sent a separate request, each of them would wait for its own timeout."""
    controllers = Controllers()
    source = source_of(controllers)
    waiting = [asyncio.create_task(source.next()) for _ in range(10)]
    await turns()
    controllers.calls[0].set_exception(NoController("nobody"))
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*waiting)
    assert answers == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_PRODUCER_ID)] * 10
    assert len(controllers.calls) == 1


async def test_ids_at_hand_are_taken_and_the_next_block_is_fetched_meanwhile() -> None:
    controllers = Controllers()
    source = source_of(controllers)
    assert source.take(8) == []
    await turns()
    controllers.calls[0].set_result(
        pb.AllocateProducerIdsResponse(producer_id_start=0, producer_id_count=1000)
    )
    await turns()
    assert source.take(8) == list(range(8))
    assert len(controllers.calls) == 1, "enough are left"
    assert source.take(600) == list(range(8, 608))
    await turns()
    assert len(controllers.calls) == 2
    assert source.take(8) == list(range(608, 616)), "they do not wait for the next block"
    controllers.calls[1].set_result(
        pb.AllocateProducerIdsResponse(producer_id_start=5000, producer_id_count=1000)
    )
    await turns()
    assert source.take(386) == [*range(616, 1000), 5000, 5001]
    assert len(controllers.calls) == 2


async def test_more_than_a_block_holds_wait_for_the_next_and_nobody_gets_another_ones_id() -> None:
    controllers = Controllers()
    source = source_of(controllers)
    waiting = [asyncio.create_task(source.next()) for _ in range(10)]
    await turns()
    waiting[3].cancel()
    for block in range(3):
        await turns()
        controllers.calls[block].set_result(
            pb.AllocateProducerIdsResponse(producer_id_start=1000 * block, producer_id_count=4)
        )
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    ids = [one[1] for one in answers if not isinstance(one, BaseException)]
    assert len(ids) == len(set(ids)) == 9
    assert set(ids) <= {*range(4), *range(1000, 1004), *range(2000, 2004)}
