"""GroupService of a broker. Each call is served by the coordinator of its group, on this broker or another one."""

from __future__ import annotations

from typing import TypeAlias

import grpc
import grpc.aio

from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.rpc import group_wire as wire
from odradek_broker.rpc.callers import ServerContext, client_caller, in_turns, put_in_turns
from odradek_broker.rpc.coordinator_routing import CoordinatorRouting
from odradek_protocol.access import Operation
from odradek_protocol.identity import BrokerId, GroupId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import group_service_pb2 as pb
from odradek_protocol.rpc.v1 import group_service_pb2_grpc as pb_grpc
from odradek_runtime.grpc_endpoints import InternalChannels

Stub: TypeAlias = "pb_grpc.GroupServiceAsyncStub"


class GroupServicer(pb_grpc.GroupServiceServicer):
    """The servicer of GroupService. Each method routes its request to the broker that coordinates the group."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        coordinator: GroupCoordinator,
        partitions: LocalPartitions,
        peers: InternalChannels,
    ) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._partitions = partitions
        self._routing: CoordinatorRouting[Stub] = CoordinatorRouting(
            broker_id=broker_id,
            placement=coordinator.placement,
            partitions=partitions,
            peers=peers,
            stub=pb_grpc.GroupServiceStub,
            nameless=ErrorCode.INVALID_GROUP_ID,
        )

    async def GroupHeartbeat(
        self, request: pb.GroupHeartbeatRequest, context: ServerContext
    ) -> pb.GroupHeartbeatResponse:
        """Join a group, stay in it, or leave it."""
        caller = client_caller()
        if caller is not None:
            request.principal, request.host = caller.principal, caller.host
            request.client_id = caller.client_id

        async def beat(request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
            outcome = await self._coordinator.consumer_heartbeat(wire.beat(request))
            return wire.beat_response(outcome, self._partitions.image)

        return await self._routing.at_coordinator(
            request.group_id,
            "GroupHeartbeat",
            request,
            context,
            here=beat,
            refuse=lambda code: pb.GroupHeartbeatResponse(error_code=code),
        )

    async def CommitOffsets(
        self, request: pb.CommitOffsetsRequest, context: ServerContext
    ) -> pb.CommitOffsetsResponse:
        """Commit offsets in one write. An offset whose metadata is too large gets its own error; other errors apply to
        the whole request.
        """
        return await self._routing.at_coordinator(
            request.group_id,
            "CommitOffsets",
            request,
            context,
            here=self._commit,
            refuse=lambda code: pb.CommitOffsetsResponse(error_code=code),
        )

    async def _commit(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        committed = await self._coordinator.commit(wire.commit(request))
        return pb.CommitOffsetsResponse(error_code=committed.error, offsets=wire.results(committed))

    async def FetchOffsets(
        self, request: pb.FetchOffsetsRequest, context: ServerContext
    ) -> pb.FetchOffsetsResponse:
        """Return committed offsets. The offset is -1 for a partition without a committed offset."""
        return await self._routing.at_coordinator(
            request.group_id,
            "FetchOffsets",
            request,
            context,
            here=self._fetch,
            refuse=lambda code: pb.FetchOffsetsResponse(error_code=code),
        )

    async def _fetch(self, request: pb.FetchOffsetsRequest) -> pb.FetchOffsetsResponse:
        return wire.committed(await self._coordinator.fetch_offsets(wire.fetch(request)))

    async def ListGroups(
        self, request: pb.ListGroupsRequest, context: ServerContext
    ) -> pb.ListGroupsResponse:
        """List the groups of the cluster, or only those that this broker coordinates (`local_only`)."""
        response = pb.ListGroupsResponse()
        try:
            async for listing in in_turns(self._coordinator.listings()):
                response.groups.add(
                    group_id=listing.group_id,
                    protocol_type=listing.protocol_type,
                    state=listing.state,
                    group_type=listing.group_type,
                )
        except CoordinatorError as error:
            response.error_code = error.code
        if not request.local_only:
            for elsewhere in await self._routing.elsewhere(
                "ListGroups",
                pb.ListGroupsRequest(local_only=True),
                refuse=lambda code: pb.ListGroupsResponse(error_code=code),
            ):
                await put_in_turns(response.groups, elsewhere.groups)
                response.error_code = response.error_code or elsewhere.error_code
        return response

    async def DescribeGroups(
        self, request: pb.DescribeGroupsRequest, context: ServerContext
    ) -> pb.DescribeGroupsResponse:
        """Describe groups. Each group is described by its coordinator."""
        groups = await self._routing.at_coordinators(
            request.group_ids,
            "DescribeGroups",
            context,
            request_for=lambda group_id: pb.DescribeGroupsRequest(group_ids=[group_id]),
            part_of=lambda response: response.groups[0],
            here=self._describe,
            refuse=lambda group_id, code: pb.GroupDescription(
                error_code=code, group_id=group_id, state="Dead"
            ),
        )
        response = pb.DescribeGroupsResponse()
        async for group in in_turns(groups):
            response.groups.append(_without_hidden_topics(group))
        return response

    async def _describe(self, group_id: str) -> pb.GroupDescription:
        described = await self._coordinator.describe(GroupId(group_id))
        return wire.description(described, self._partitions.image, self._broker_id)

    async def DeleteGroups(
        self, request: pb.DeleteGroupsRequest, context: ServerContext
    ) -> pb.DeleteGroupsResponse:
        """Delete groups. Each group is deleted by its coordinator."""
        results = await self._routing.at_coordinators(
            request.group_ids,
            "DeleteGroups",
            context,
            request_for=lambda group_id: pb.DeleteGroupsRequest(group_ids=[group_id]),
            part_of=lambda response: response.groups[0],
            here=self._delete,
            refuse=_result,
        )
        response = pb.DeleteGroupsResponse()
        await put_in_turns(response.groups, results)
        return response

    async def _delete(self, group_id: str) -> pb.GroupResult:
        return _result(group_id, await self._coordinator.delete_group(GroupId(group_id)))

    async def DeleteOffsets(
        self, request: pb.DeleteOffsetsRequest, context: ServerContext
    ) -> pb.DeleteOffsetsResponse:
        """Delete committed offsets of a group."""
        return await self._routing.at_coordinator(
            request.group_id,
            "DeleteOffsets",
            request,
            context,
            here=self._delete_offsets,
            refuse=lambda code: pb.DeleteOffsetsResponse(error_code=code),
        )

    async def _delete_offsets(self, request: pb.DeleteOffsetsRequest) -> pb.DeleteOffsetsResponse:
        deleted = await self._coordinator.delete_offsets(
            GroupId(request.group_id), [wire.partition(p) for p in request.partitions]
        )
        return pb.DeleteOffsetsResponse(error_code=deleted.error, offsets=wire.results(deleted))


def add_to(server: grpc.aio.Server, servicer: GroupServicer) -> str:
    """Register the servicer, and return the service's full name."""
    pb_grpc.add_GroupServiceServicer_to_server(servicer, server)
    return pb.DESCRIPTOR.services_by_name["GroupService"].full_name


def _without_hidden_topics(group: pb.GroupDescription) -> pb.GroupDescription:
    """Return the group, or only an error if the group reads topics that the caller may not describe (KAFKA-18813)."""
    caller = client_caller()
    topics = {partition.topic for member in group.members for partition in member.assignment}
    if caller is None or all(caller.may(Operation.DESCRIBE, topic) for topic in topics):
        return group
    return pb.GroupDescription(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, group_id=group.group_id, state="Dead"
    )


def _result(group_id: str, code: ErrorCode) -> pb.GroupResult:
    return pb.GroupResult(group_id=group_id, error_code=code)
