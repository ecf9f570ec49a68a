"""What responses to heartbeats change; responses of a controller of another quorum change
nothing.
"""

from __future__ import annotations

import asyncio

from odradek_broker.cluster.heartbeat import Heartbeat, Lease, LoopTick
from odradek_protocol.identity import BrokerEpoch, BrokerId, ControllerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_runtime.clock import boottime_ms


def answer(epoch: int, error: ErrorCode = ErrorCode.NONE) -> pb.HeartbeatResponse:
    return pb.HeartbeatResponse(seq=1, is_active=True, controller_epoch=epoch, error_code=error)


async def test_the_refusal_of_a_stranger_takes_no_lease_away() -> None:
    """A controller that leads a quorum of its own raises its epoch with each restart."""
    lease = Lease(2_400)
    heartbeat = Heartbeat(
        broker_id=BrokerId(1),
        broker_epoch=BrokerEpoch(500),
        lease=lease,
        tick=LoopTick(),
        loop=asyncio.get_running_loop(),
        on_update=lambda _: None,
        on_stale=lambda: None,
    )
    heartbeat.received(ControllerId(1), answer(5), boottime_ms())
    assert lease.until_ms > 0
    for code in (ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_SERVER_ERROR):
        heartbeat.received(ControllerId(3), answer(9, code), boottime_ms())
    lease.until_ms = 0
    heartbeat.received(ControllerId(1), answer(5), boottime_ms())
    assert lease.until_ms > 0, "the answers of the real controller renew nothing any more"
    heartbeat.received(ControllerId(2), answer(6), boottime_ms())
    lease.until_ms = 0
    heartbeat.received(ControllerId(1), answer(5), boottime_ms())
    assert lease.until_ms == 0, "a deposed controller renewed the lease"
