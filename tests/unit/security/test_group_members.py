"""The principal and host of a gRPC group member are those that the broker authenticated, not those in the request."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from odradek_broker.access.authorizer import AclAuthorizer, EverybodyMay
from odradek_broker.groups.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    GroupDescription,
    MemberDescription,
)
from odradek_broker.replication.outcomes import LeaderNow
from odradek_broker.rpc import callers as grpc_callers
from odradek_broker.rpc.callers import Caller, serve_as
from odradek_broker.rpc.coordinator_routing import NAMES_MAX
from odradek_broker.rpc.group_servicer import GroupServicer
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import BrokerId, GroupId, LeaderEpoch, MemberId, PartitionIndex
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import group_service_pb2 as pb
from tests.unit.kafka.fake_broker import TOPICS, image
from tests.unit.security.acl_entries import entries_for

ME, OTHER = BrokerId(1), BrokerId(2)
CLAIMED = pb.GroupHeartbeatRequest(
    group_id="g", member_id="m", subscribed_pattern=".*", principal="User:admin", host="10.0.0.9"
)


class Coordinator:
    """The group coordinator on one of the brokers."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id
        self.beats: list[ConsumerHeartbeat] = []
        self.placement = self

    def coordinator_of(self, group_id: str) -> LeaderNow:
        return LeaderNow(self._broker_id, LeaderEpoch(1))

    async def consumer_heartbeat(self, beat: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
        self.beats.append(beat)
        return ConsumerHeartbeatAnswer(error=ErrorCode.NONE)

    async def describe(self, group_id: str) -> GroupDescription:
        member = MemberDescription(
            member_id=MemberId("m"),
            instance_id=None,
            client_id="c",
            client_host="h",
            assignment={topic_id: frozenset({PartitionIndex(0)}) for topic_id in TOPICS.values()},
        )
        return GroupDescription(
            error=ErrorCode.NONE,
            group_id=GroupId(group_id),
            state="Stable",
            group_type="consumer",
            members=(member,),
        )


class Partitions:
    image = image()


class Call:
    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Aborted(code)


class Aborted(Exception):
    """The call ended with that status."""


class Stub:
    """The gRPC stub of the other broker."""

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

    monkeypatch.setattr(called._routing, "_stub", lambda _: stub)
    serve_as(Caller(EverybodyMay(), principal="User:alice", host="127.0.0.1"))
    await called.GroupHeartbeat(claimed(), Call())
    (forwarded,) = stub.forwarded
    assert (forwarded.principal, forwarded.host) == ("User:alice", "127.0.0.1")
    coordinator = Coordinator(ME)
    nobody = grpc_callers.ContextVar[Caller]("nobody")  # no client calls there, brokers do
    monkeypatch.setattr(grpc_callers, "_current", nobody)
    await servicer(coordinator).GroupHeartbeat(forwarded, Call())
    assert coordinator.beats[0].principal == "User:alice"


@pytest.mark.parametrize("seen", [["orders"], ["orders", "payments"]])
async def test_who_may_not_see_a_topic_is_not_told_that_a_group_reads_it(seen: list[str]) -> None:
    authorizer = AclAuthorizer()
    rights = [(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in seen]
    authorizer.entries_changed(entries_for("User:alice", rights))
    serve_as(Caller(authorizer, principal="User:alice", host="127.0.0.1"))
    asked = pb.DescribeGroupsRequest(group_ids=["g"])
    (group,) = (await servicer(Coordinator(ME)).DescribeGroups(asked, Call())).groups
    if len(seen) == len(TOPICS):
        assert [one.topic for one in group.members[0].assignment] == seen
    else:
        assert group.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "payments" not in str(group)


@pytest.mark.parametrize("method", ["DescribeGroups", "DeleteGroups"])
async def test_a_call_names_so_many_groups_and_no_more(method: str) -> None:
    """Each group is handled by a task of its own, and 64 MiB have space for millions of names."""
    named = [f"g{number}" for number in range(NAMES_MAX + 1)]
    asked = getattr(pb, f"{method}Request")(group_ids=named)
    with pytest.raises(Aborted, match="INVALID_ARGUMENT"):
        await getattr(servicer(Coordinator(ME)), method)(asked, Call())
