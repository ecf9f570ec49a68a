"""Who a member of a group is, over gRPC: as the broker knows it that the member calls, not as it says."""

from __future__ import annotations

from typing import Any

import pytest

from odradek_broker.groups.messages import ConsumerHeartbeat, ConsumerHeartbeatAnswer
from odradek_broker.listeners import grpc_callers
from odradek_broker.listeners.grpc_callers import Caller, serve_as
from odradek_broker.listeners.servicers.group_servicer import GroupServicer
from odradek_broker.replication.outcomes import LeaderNow
from odradek_broker.security.authorizer import EverybodyMay
from odradek_protocol.identity import BrokerId, LeaderEpoch
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.rpc.v1 import group_service_pb2 as pb

ME, OTHER = BrokerId(1), BrokerId(2)
CLAIMED = pb.GroupHeartbeatRequest(
    group_id="g", member_id="m", subscribed_pattern=".*", principal="User:admin", host="10.0.0.9"
)


class Coordinator:
    """On one of the brokers."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id
        self.beats: list[ConsumerHeartbeat] = []

    def coordinator_of(self, group_id: str) -> LeaderNow:
        return LeaderNow(self._broker_id, LeaderEpoch(1))

    async def consumer_heartbeat(self, beat: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
        self.beats.append(beat)
        return ConsumerHeartbeatAnswer(error=ErrorCode.NONE)


class Partitions:
    image = MetadataImage()


class Call:
    def invocation_metadata(self) -> tuple[()]:
        return ()


class Stub:
    """The other broker."""

    def __init__(self) -> None:
        self.forwarded: list[pb.GroupHeartbeatRequest] = []

    async def GroupHeartbeat(self, request: Any, **_: Any) -> pb.GroupHeartbeatResponse:
        self.forwarded.append(request)
        return pb.GroupHeartbeatResponse()


def claimed() -> pb.GroupHeartbeatRequest:
    request = pb.GroupHeartbeatRequest()
    request.CopyFrom(CLAIMED)
    return request


def servicer(coordinator: Coordinator) -> GroupServicer:
    parts: Any = {"coordinator": coordinator, "partitions": Partitions(), "peers": None}
    return GroupServicer(broker_id=ME, **parts)


async def test_a_client_is_who_it_has_proved_to_be() -> None:
    coordinator = Coordinator(ME)
    serve_as(Caller(EverybodyMay(), principal="User:alice", host="127.0.0.1"))
    await servicer(coordinator).GroupHeartbeat(claimed(), Call())
    (beat,) = coordinator.beats
    assert (beat.principal, beat.client_host) == ("User:alice", "/127.0.0.1")


async def test_the_coordinator_hears_of_it_from_the_broker_that_was_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called, stub = servicer(Coordinator(OTHER)), Stub()

    async def to_other(_: BrokerId) -> Stub:
        return stub

    monkeypatch.setattr(called._routing, "_stub", to_other)
    serve_as(Caller(EverybodyMay(), principal="User:alice", host="127.0.0.1"))
    await called.GroupHeartbeat(claimed(), Call())
    (forwarded,) = stub.forwarded
    assert (forwarded.principal, forwarded.host) == ("User:alice", "127.0.0.1")
    coordinator = Coordinator(ME)
    nobody = grpc_callers.ContextVar[Caller]("nobody")  # no client calls there, brokers do
    monkeypatch.setattr(grpc_callers, "_current", nobody)
    await servicer(coordinator).GroupHeartbeat(forwarded, Call())
    assert coordinator.beats[0].principal == "User:alice"
