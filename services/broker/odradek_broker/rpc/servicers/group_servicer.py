"""GroupService at a broker: each call at the coordinator of its group, wherever that is."""

from __future__ import annotations

import grpc.aio

from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.rpc.callers import ServerContext, client_caller, in_turns
from odradek_broker.rpc.servicers import group_wire as wire
from odradek_broker.rpc.servicers.group_routing import GroupRouting
from odradek_protocol.access import Operation
from odradek_protocol.identity import BrokerId, GroupId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import group_service_pb2 as pb
from odradek_protocol.rpc.v1 import group_service_pb2_grpc as pb_grpc
from odradek_runtime.grpc_endpoints import InternalChannels


class GroupServicer(pb_grpc.GroupServiceServicer):
    """One method per RPC, and beside it what that does where the group is."""

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
        self._routing = GroupRouting(
            broker_id=broker_id, coordinator=coordinator, partitions=partitions, peers=peers
        )

    # --- members -----------------------------------------------------------------------------------

    async def GroupHeartbeat(
        self, request: pb.GroupHeartbeatRequest, context: ServerContext
    ) -> pb.GroupHeartbeatResponse:
        """Join, stay, leave."""
        caller = client_caller()
        if caller is not None:
            request.principal, request.host = caller.principal, caller.host

        async def beat(request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
            told = await self._coordinator.consumer_heartbeat(wire.beat(request))
            return wire.beat_answer(told, self._partitions.image)

        return await self._routing.at_coordinator(
            "GroupHeartbeat",
            request,
            context,
            here=beat,
            refuse=lambda code: pb.GroupHeartbeatResponse(error_code=code),
        )

    async def CommitOffsets(
        self, request: pb.CommitOffsetsRequest, context: ServerContext
    ) -> pb.CommitOffsetsResponse:
        """All or none of the offsets are taken, but for metadata that is too large."""
        return await self._routing.at_coordinator(
            "CommitOffsets",
            request,
            context,
            here=self._commit,
            refuse=lambda code: pb.CommitOffsetsResponse(error_code=code),
        )

    async def _commit(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        told = await self._coordinator.commit(wire.commit(request))
        return pb.CommitOffsetsResponse(error_code=told.error, offsets=wire.results(told))

    async def FetchOffsets(
        self, request: pb.FetchOffsetsRequest, context: ServerContext
    ) -> pb.FetchOffsetsResponse:
        """Committed offsets; -1 for a partition without."""
        return await self._routing.at_coordinator(
            "FetchOffsets",
            request,
            context,
            here=self._fetch,
            refuse=lambda code: pb.FetchOffsetsResponse(error_code=code),
        )

    async def _fetch(self, request: pb.FetchOffsetsRequest) -> pb.FetchOffsetsResponse:
        return wire.committed(await self._coordinator.fetch_offsets(wire.fetch(request)))

    # --- administration ----------------------------------------------------------------------------

    async def ListGroups(
        self, request: pb.ListGroupsRequest, context: ServerContext
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
        if not request.local_only:
            for told in await self._routing.listings_elsewhere():
                answer.groups.extend(told.groups)
                answer.error_code = answer.error_code or told.error_code
        return answer

    async def DescribeGroups(
        self, request: pb.DescribeGroupsRequest, context: ServerContext
    ) -> pb.DescribeGroupsResponse:
        """Each at its coordinator."""
        groups = await self._routing.at_coordinators(
            "DescribeGroups",
            request,
            context,
            here=self._describe,
            refuse=lambda group_id, code: pb.GroupDescription(
                error_code=code, group_id=group_id, state="Dead"
            ),
        )
        response = pb.DescribeGroupsResponse()
        async for group in in_turns(groups):
            response.groups.append(_as_may_be_told(group))
        return response

    async def _describe(self, group_id: str) -> pb.GroupDescription:
        described = await self._coordinator.describe(GroupId(group_id))
        return wire.description(described, self._partitions.image, self._broker_id)

    async def DeleteGroups(
        self, request: pb.DeleteGroupsRequest, context: ServerContext
    ) -> pb.DeleteGroupsResponse:
        """Each at its coordinator."""
        results = await self._routing.at_coordinators(
            "DeleteGroups", request, context, here=self._delete, refuse=_result
        )
        return pb.DeleteGroupsResponse(groups=results)

    async def _delete(self, group_id: str) -> pb.GroupResult:
        return _result(group_id, await self._coordinator.delete_group(GroupId(group_id)))

    async def DeleteOffsets(
        self, request: pb.DeleteOffsetsRequest, context: ServerContext
    ) -> pb.DeleteOffsetsResponse:
        """At the group's coordinator."""
        return await self._routing.at_coordinator(
            "DeleteOffsets",
            request,
            context,
            here=self._delete_offsets,
            refuse=lambda code: pb.DeleteOffsetsResponse(error_code=code),
        )

    async def _delete_offsets(self, request: pb.DeleteOffsetsRequest) -> pb.DeleteOffsetsResponse:
        told = await self._coordinator.delete_offsets(
            GroupId(request.group_id), [wire.partition(p) for p in request.partitions]
        )
        return pb.DeleteOffsetsResponse(error_code=told.error, offsets=wire.results(told))


def add_to(server: grpc.aio.Server, servicer: GroupServicer) -> str:
    """Serve it; the service's full name, for reflection."""
    pb_grpc.add_GroupServiceServicer_to_server(servicer, server)
    return pb.DESCRIPTOR.services_by_name["GroupService"].full_name


def _as_may_be_told(group: pb.GroupDescription) -> pb.GroupDescription:
    """The group, or only that it reads topics that the caller may not know of (KAFKA-18813)."""
    caller = client_caller()
    topics = {one.topic for member in group.members for one in member.assignment}
    if caller is None or all(caller.may(Operation.DESCRIBE, topic) for topic in topics):
        return group
    return pb.GroupDescription(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, group_id=group.group_id, state="Dead"
    )


def _result(group_id: str, code: ErrorCode) -> pb.GroupResult:
    return pb.GroupResult(group_id=group_id, error_code=code)
