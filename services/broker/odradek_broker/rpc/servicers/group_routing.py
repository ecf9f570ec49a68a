"""Where a call of GroupService is done: here for groups that this broker coordinates, else at the broker that does.

A call that was passed on once is not passed on again (`odradek-forwarded`): two brokers whose images differ must not
play ball with it; the client retries NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

import grpc
import grpc.aio

from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.rpc.callers import ServerContext, answers_in_turns
from odradek_broker.settings import REPLICATION
from odradek_protocol.identity import BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import group_service_pb2 as pb
from odradek_protocol.rpc.v1 import group_service_pb2_grpc as pb_grpc
from odradek_runtime.grpc_endpoints import InternalChannels

_TIMEOUT_S: Final = 15.0
GROUPS_MAX: Final = 10_000
_FORWARDED: Final = "odradek-forwarded"
_ONCE: Final = ((_FORWARDED, "1"),)
Request = TypeVar("Request")
Response = TypeVar("Response")
Stub: TypeAlias = "pb_grpc.GroupServiceAsyncStub"
ManyRequest = TypeVar("ManyRequest", pb.DescribeGroupsRequest, pb.DeleteGroupsRequest)


class GroupRouting:
    """`here` does a request, or a group's part of it; `refuse` makes the answer that is only an error.

    A call that is passed on is the same `method` of the other broker.
    """

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
        self._peers = peers

    async def at_coordinator(
        self,
        method: str,
        request: Request,  # with a group_id
        context: ServerContext,
        *,
        here: Callable[[Request], Awaitable[Response]],
        refuse: Callable[[ErrorCode], Response],
    ) -> Response:
        """The answer of the group's coordinator."""
        group_id: str = request.group_id  # type: ignore[attr-defined]  # messages share no type

        async def there(stub: Stub) -> Response:
            call = getattr(stub, method)
            response: Response = await call(request, timeout=_TIMEOUT_S, metadata=_ONCE)
            return response

        return await self._route(group_id, context, lambda: here(request), there, refuse)

    async def at_coordinators(
        self,
        method: str,
        request: ManyRequest,
        context: ServerContext,
        *,
        here: Callable[[str], Awaitable[Response]],
        refuse: Callable[[str, ErrorCode], Response],
    ) -> list[Response]:
        """The answers of the coordinators of all groups, in the order of the request."""
        if len(request.group_ids) > GROUPS_MAX:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"at most {GROUPS_MAX} groups a call"
            )

        async def one(group_id: str) -> Response:
            async def there(stub: Stub) -> Response:
                responses = await getattr(stub, method)(
                    type(request)(group_ids=[group_id]), timeout=_TIMEOUT_S, metadata=_ONCE
                )
                response: Response = responses.groups[0]
                return response

            return await self._route(
                group_id,
                context,
                lambda: here(group_id),
                there,
                lambda code: refuse(group_id, code),
            )

        return await answers_in_turns(request.group_ids, one)

    async def listings_elsewhere(self) -> list[pb.ListGroupsResponse]:
        """What each other broker that lives coordinates; an error for one that does not tell."""
        others = [
            broker.broker_id
            for broker in self._partitions.image.brokers.values()
            if not broker.fenced and broker.broker_id != self._broker_id
        ]
        return list(await asyncio.gather(*(self._listing_at(other) for other in others)))

    async def _listing_at(self, broker_id: BrokerId) -> pb.ListGroupsResponse:
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

    async def _route(
        self,
        group_id: str,
        context: ServerContext,
        here: Callable[[], Awaitable[Response]],
        there: Callable[[Stub], Awaitable[Response]],
        refuse: Callable[[ErrorCode], Response],
    ) -> Response:
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

    async def _stub(self, broker_id: BrokerId) -> Stub | None:
        broker = self._partitions.image.brokers.get(broker_id)
        endpoint = None if broker is None or broker.fenced else broker.endpoint(REPLICATION)
        if endpoint is None:
            return None
        channel = self._peers.channel(f"broker-{broker_id}", endpoint.host, endpoint.port)
        return pb_grpc.GroupServiceStub(channel)
