"""GroupService at a broker: done here for groups that it coordinates, else passed on to the broker that does.

A call that was passed on once is not passed on again (`odradek-forwarded`): two brokers whose images differ must not
play ball with it; the client retries NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from odradek_broker.cluster.peers import PeerChannels
from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import (
    Assignment,
    CommitOffsets,
    CommittedOffset,
    ConsumerHeartbeat,
    FetchOffsets,
    GroupDescription,
)
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.settings import REPLICATION
from odradek_protocol.identity import (
    BrokerId,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import group_service_pb2 as pb
from odradek_protocol.rpc.v1 import group_service_pb2_grpc as pb_grpc

_TIMEOUT_S: Final = 15.0
_FORWARDED: Final = "odradek-forwarded"
Answer = TypeVar("Answer")


class GroupServicer(pb_grpc.GroupServiceServicer):
    """One method per RPC."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        coordinator: GroupCoordinator,
        partitions: LocalPartitions,
        peers: PeerChannels,
    ) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._partitions = partitions
        self._peers = peers

    # --- members -----------------------------------------------------------------------------------

    async def GroupHeartbeat(
        self, request: pb.GroupHeartbeatRequest, context: Any
    ) -> pb.GroupHeartbeatResponse:
        """Join, stay, leave."""

        async def here() -> pb.GroupHeartbeatResponse:
            told = await self._coordinator.consumer_heartbeat(_beat(request, context.peer()))
            answer = pb.GroupHeartbeatResponse(
                error_code=told.error,
                error_message=told.error_message or "",
                member_epoch=told.member_epoch,
                heartbeat_interval_ms=told.heartbeat_interval_ms,
            )
            if told.assignment is not None:
                answer.has_assignment = True
                answer.assignment.extend(_partitions(told.assignment, self._partitions.image))
            return answer

        return await self._at_coordinator(
            request.group_id,
            here,
            lambda stub: stub.GroupHeartbeat(request, timeout=_TIMEOUT_S, metadata=_ONCE),
            lambda code: pb.GroupHeartbeatResponse(error_code=code),
            context,
        )

    async def CommitOffsets(
        self, request: pb.CommitOffsetsRequest, context: Any
    ) -> pb.CommitOffsetsResponse:
        """All or none of the offsets are taken, but for metadata that is too large."""

        async def here() -> pb.CommitOffsetsResponse:
            told = await self._coordinator.commit(_commit(request))
            answer = pb.CommitOffsetsResponse(error_code=told.error)
            for partition, code in told.partitions.items():
                answer.offsets.add(partition=_wire(partition), error_code=code)
            return answer

        return await self._at_coordinator(
            request.group_id,
            here,
            lambda stub: stub.CommitOffsets(request, timeout=_TIMEOUT_S, metadata=_ONCE),
            lambda code: pb.CommitOffsetsResponse(error_code=code),
            context,
        )

    async def FetchOffsets(
        self, request: pb.FetchOffsetsRequest, context: Any
    ) -> pb.FetchOffsetsResponse:
        """Committed offsets; -1 for a partition without."""

        async def here() -> pb.FetchOffsetsResponse:
            told = await self._coordinator.fetch_offsets(
                FetchOffsets(
                    group_id=GroupId(request.group_id),
                    partitions=[_named(p) for p in request.partitions] or None,
                    member_id=MemberId(request.member_id) if request.member_id else None,
                    member_epoch=request.member_epoch if request.member_id else -1,
                )
            )
            answer = pb.FetchOffsetsResponse(error_code=told.error)
            for partition, committed in told.offsets.items():
                answer.offsets.add(
                    partition=_wire(partition),
                    offset=-1 if committed is None else committed.offset,
                    leader_epoch=-1 if committed is None else committed.leader_epoch,
                    metadata="" if committed is None else committed.metadata,
                )
            return answer

        return await self._at_coordinator(
            request.group_id,
            here,
            lambda stub: stub.FetchOffsets(request, timeout=_TIMEOUT_S, metadata=_ONCE),
            lambda code: pb.FetchOffsetsResponse(error_code=code),
            context,
        )

    # --- administration ----------------------------------------------------------------------------

    async def ListGroups(
        self, request: pb.ListGroupsRequest, context: Any
    ) -> pb.ListGroupsResponse:
        """Those of all brokers, or only this one's."""
        answer = pb.ListGroupsResponse()
        try:
            for listing in self._coordinator.listings():
                answer.groups.add(
                    group_id=listing.group_id,
                    protocol_type=listing.protocol_type,
                    state=listing.state,
                    group_type=listing.group_type,
                )
        except CoordinatorError as error:
            answer.error_code = error.code
        if request.local_only:
            return answer
        others = [
            broker.broker_id
            for broker in self._partitions.image.brokers.values()
            if not broker.fenced and broker.broker_id != self._broker_id
        ]
        for told in await asyncio.gather(*(self._list_at(other) for other in others)):
            answer.groups.extend(told.groups)
            answer.error_code = answer.error_code or told.error_code
        return answer

    async def _list_at(self, broker_id: BrokerId) -> pb.ListGroupsResponse:
        stub = await self._stub(broker_id)
        if stub is None:
            return pb.ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        try:
            told: pb.ListGroupsResponse = await stub.ListGroups(
                pb.ListGroupsRequest(local_only=True), timeout=_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return pb.ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return told

    async def DescribeGroups(
        self, request: pb.DescribeGroupsRequest, context: Any
    ) -> pb.DescribeGroupsResponse:
        """Each at its coordinator."""
        groups = await asyncio.gather(*(self._describe(g, context) for g in request.group_ids))
        return pb.DescribeGroupsResponse(groups=groups)

    async def _describe(self, group_id: str, context: Any) -> pb.GroupDescription:
        async def here() -> pb.GroupDescription:
            described = await self._coordinator.describe(GroupId(group_id))
            return _description(described, self._partitions.image, self._broker_id)

        async def there(stub: Any) -> pb.GroupDescription:
            told: pb.DescribeGroupsResponse = await stub.DescribeGroups(
                pb.DescribeGroupsRequest(group_ids=[group_id]), timeout=_TIMEOUT_S, metadata=_ONCE
            )
            return told.groups[0]

        return await self._at_coordinator(
            group_id,
            here,
            there,
            lambda code: pb.GroupDescription(error_code=code, group_id=group_id, state="Dead"),
            context,
        )

    async def DeleteGroups(
        self, request: pb.DeleteGroupsRequest, context: Any
    ) -> pb.DeleteGroupsResponse:
        """Each at its coordinator."""
        results = await asyncio.gather(*(self._delete(g, context) for g in request.group_ids))
        return pb.DeleteGroupsResponse(groups=results)

    async def _delete(self, group_id: str, context: Any) -> pb.GroupResult:
        async def here() -> pb.GroupResult:
            code = await self._coordinator.delete_group(GroupId(group_id))
            return pb.GroupResult(group_id=group_id, error_code=code)

        async def there(stub: Any) -> pb.GroupResult:
            told: pb.DeleteGroupsResponse = await stub.DeleteGroups(
                pb.DeleteGroupsRequest(group_ids=[group_id]), timeout=_TIMEOUT_S, metadata=_ONCE
            )
            return told.groups[0]

        return await self._at_coordinator(
            group_id,
            here,
            there,
            lambda code: pb.GroupResult(group_id=group_id, error_code=code),
            context,
        )

    async def DeleteOffsets(
        self, request: pb.DeleteOffsetsRequest, context: Any
    ) -> pb.DeleteOffsetsResponse:
        """At the group's coordinator."""

        async def here() -> pb.DeleteOffsetsResponse:
            told = await self._coordinator.delete_offsets(
                GroupId(request.group_id), [_named(p) for p in request.partitions]
            )
            answer = pb.DeleteOffsetsResponse(error_code=told.error)
            for partition, code in told.partitions.items():
                answer.offsets.add(partition=_wire(partition), error_code=code)
            return answer

        return await self._at_coordinator(
            request.group_id,
            here,
            lambda stub: stub.DeleteOffsets(request, timeout=_TIMEOUT_S, metadata=_ONCE),
            lambda code: pb.DeleteOffsetsResponse(error_code=code),
            context,
        )

    # --- where ---------------------------------------------------------------------------------------

    async def _at_coordinator(
        self,
        group_id: str,
        here: Callable[[], Awaitable[Answer]],
        there: Callable[[Any], Awaitable[Answer]],
        refuse: Callable[[ErrorCode], Answer],
        context: Any,
    ) -> Answer:
        if not group_id:
            return refuse(ErrorCode.INVALID_GROUP_ID)
        leader = self._coordinator.coordinator_of(group_id)
        if leader is None:
            code = await self._coordinator.ensure_topic()
            return refuse(code or ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if leader.broker_id == self._broker_id:
            try:
                return await here()
            except CoordinatorError as error:
                return refuse(error.code)
        was_forwarded = any(key == _FORWARDED for key, _ in context.invocation_metadata() or ())
        stub = None if was_forwarded else await self._stub(leader.broker_id)
        if stub is None:
            return refuse(ErrorCode.NOT_COORDINATOR)
        try:
            return await there(stub)
        except grpc.aio.AioRpcError:
            return refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def _stub(self, broker_id: BrokerId) -> Any:
        broker = self._partitions.image.brokers.get(broker_id)
        endpoint = None if broker is None or broker.fenced else broker.endpoint(REPLICATION)
        if endpoint is None:
            return None
        channel = await self._peers.channel(broker_id, endpoint.host, endpoint.port)
        return pb_grpc.GroupServiceStub(channel)


_ONCE: Final = ((_FORWARDED, "1"),)


def add_to(server: grpc.aio.Server, servicer: GroupServicer) -> str:
    """Serve it; the service's full name, for reflection."""
    pb_grpc.add_GroupServiceServicer_to_server(servicer, server)
    return pb.DESCRIPTOR.services_by_name["GroupService"].full_name


def _named(partition: common_pb2.TopicPartition) -> TopicPartition:
    return TopicPartition(TopicName(partition.topic), PartitionIndex(partition.partition))


def _wire(partition: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=partition.topic, partition=partition.partition)


def _beat(request: pb.GroupHeartbeatRequest, peer: str) -> ConsumerHeartbeat:
    def maybe(name: str) -> str | None:
        return getattr(request, name) if request.HasField(name) else None

    names = tuple(TopicName(name) for name in request.subscribed_topics)
    pattern = maybe("subscribed_pattern")
    return ConsumerHeartbeat(
        group_id=GroupId(request.group_id),
        member_id=MemberId(request.member_id),
        member_epoch=request.member_epoch,
        instance_id=maybe("instance_id"),
        rack_id=maybe("rack"),
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topics=names if request.has_subscription else None,
        subscribed_regex=(pattern or "") if request.has_subscription else None,
        server_assignor=maybe("assignor"),
        owned=_assignment(request.owned) if request.has_owned else None,
        client_id="odradek",
        client_host=peer,
    )


def _commit(request: pb.CommitOffsetsRequest) -> CommitOffsets:
    return CommitOffsets(
        group_id=GroupId(request.group_id),
        member_id=MemberId(request.member_id),
        instance_id=request.instance_id if request.HasField("instance_id") else None,
        generation_or_epoch=request.member_epoch if request.member_id else -1,
        offsets={
            _named(one.partition): CommittedOffset(
                offset=Offset(one.offset),
                leader_epoch=LeaderEpoch(one.leader_epoch),
                metadata=one.metadata,
            )
            for one in request.offsets
        },
    )


def _assignment(topics: Iterable[pb.GroupTopicPartitions]) -> Assignment:
    return {
        TopicId(one.topic_id): frozenset(PartitionIndex(i) for i in one.partitions)
        for one in topics
        if one.partitions
    }


def _partitions(assignment: Assignment, image: MetadataImage) -> Sequence[pb.GroupTopicPartitions]:
    told = []
    for topic_id, indexes in sorted(assignment.items()):
        topic = image.topics.get(topic_id)
        if topic is not None:  # deleted meanwhile: the next heartbeat's target has it no more
            told.append(
                pb.GroupTopicPartitions(
                    topic_id=topic_id, topic=topic.name, partitions=sorted(indexes)
                )
            )
    return told


def _description(
    group: GroupDescription, image: MetadataImage, coordinator_id: BrokerId
) -> pb.GroupDescription:
    described = pb.GroupDescription(
        error_code=group.error,
        group_id=group.group_id,
        state=group.state,
        group_type=group.group_type,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        epoch=group.epoch,
        coordinator_id=coordinator_id,
    )
    for member in group.members:
        described.members.add(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_epoch=member.member_epoch,
            assignment=_partitions(member.assignment, image),
        )
    return described
