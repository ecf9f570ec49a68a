"""Quotas apply to unary calls over gRPC: they are the same as on Kafka's listeners, and delay the
response.
"""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from odradek_broker.access.authorizer import EverybodyMay
from odradek_broker.access.grpc_sessions import GrpcSessions
from odradek_broker.access.quotas import MUTATION_RATE, REQUEST_PERCENTAGE, Quotas
from odradek_broker.access.rights import MUTATIONS, RULES
from odradek_broker.rpc.authorization import Authorization
from odradek_broker.rpc.callers import Callers
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import admin_service_pb2_grpc as pb_grpc


class Recorded(Quotas):
    """Quotas that record the values that are counted, and never delay a request for long."""

    def __init__(self, wait_ms: int) -> None:
        super().__init__()
        self.wait_ms = wait_ms
        self.counted: list[tuple[str, str, str | None, float]] = []

    def throttle_ms(self, key: str, principal: str, client_id: str | None, amount: float) -> int:
        self.counted.append((key, principal, client_id, amount))
        return self.wait_ms


class Admin(pb_grpc.AdminServiceServicer):
    async def CreateTopics(self, request: pb.CreateTopicsRequest, context: Any) -> Any:
        return pb.CreateTopicsResponse()


@pytest.mark.parametrize("wait_ms", [0, 50])
async def test_partitions_that_are_made_are_counted(wait_ms: int) -> None:
    quotas = Recorded(wait_ms)
    callers = Callers(EverybodyMay(), GrpcSessions(dict, lifetime_ms=1), listener="GRPC")
    server = grpc.aio.server(interceptors=[Authorization(callers, quotas)])
    pb_grpc.add_AdminServiceServicer_to_server(Admin(), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = pb_grpc.AdminServiceStub(channel)
            await stub.CreateTopics(
                pb.CreateTopicsRequest(topics=[{"name": "a", "partition_count": 5}, {"name": "b"}]),
                metadata=(("odradek-client-id", "me"),),
            )
    finally:
        await server.stop(0)
    [mutations, requests] = quotas.counted
    assert mutations == (MUTATION_RATE, "User:ANONYMOUS", "me", 6)
    assert requests[:3] == (REQUEST_PERCENTAGE, "User:ANONYMOUS", "me")
    assert 0 < requests[3] < 1


def test_what_is_counted_is_served() -> None:
    assert set(MUTATIONS) <= set(RULES)
