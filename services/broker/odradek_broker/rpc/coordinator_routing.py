"""Routing of gRPC calls to the coordinator of a group or a transactional id, on this broker or another one.

A call for a coordinator on another broker is forwarded. A forwarded call (header `odradek-forwarded`) is not forwarded
again, because it could circle between two brokers whose images differ. The client gets NOT_COORDINATOR, and retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import grpc
import grpc.aio

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.coordination.placement import Placement
from odradek_broker.listener_settings import REPLICATION
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.rpc.callers import ServerContext, results_in_turns
from odradek_protocol.identity import BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_runtime.grpc_endpoints import InternalChannels

_TIMEOUT_S: Final = 15.0
NAMES_MAX: Final = 10_000
_FORWARDED: Final = "odradek-forwarded"
_ONCE: Final = ((_FORWARDED, "1"),)
Request = TypeVar("Request")
Response = TypeVar("Response")
Stub = TypeVar("Stub")


class CoordinatorRouting(Generic[Stub]):
    """Routes calls to coordinators.

    In all methods, `here` serves a request (or its part for one name) on this broker, `refuse` creates a response with
    an error, and `method` is the RPC that is called if the request is forwarded.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        placement: Placement,
        partitions: LocalPartitions,
        peers: InternalChannels,
        stub: Callable[[grpc.aio.Channel], Stub],
        nameless: ErrorCode,
    ) -> None:
        """`nameless` is the error code if the name of the group, transactional id or query is empty."""
        self._broker_id = broker_id
        self._placement = placement
        self._partitions = partitions
        self._peers = peers
        self._make_stub = stub
        self._nameless = nameless

    async def at_coordinator(
        self,
        name: str,
        method: str,
        request: Request,
        context: ServerContext,
        *,
        here: Callable[[Request], Awaitable[Response]],
        refuse: Callable[[ErrorCode], Response],
    ) -> Response:
        """Let the coordinator of `name` serve the request, and return its response."""

        async def there(stub: Stub) -> Response:
            call = getattr(stub, method)
            response: Response = await call(request, timeout=_TIMEOUT_S, metadata=_ONCE)
            return response

        return await self._route(name, context, lambda: here(request), there, refuse)

    async def at_coordinators(
        self,
        names: Sequence[str],
        method: str,
        context: ServerContext,
        *,
        request_for: Callable[[str], Any],
        part_of: Callable[[Any], Response],
        here: Callable[[str], Awaitable[Response]],
        refuse: Callable[[str, ErrorCode], Response],
    ) -> list[Response]:
        """Let the coordinator of each name serve its part of a request. Return the parts of the response, in order.

        If a part is forwarded, `request_for` creates the request with one name, and `part_of` returns that name's part
        of the response.
        """
        if len(names) > NAMES_MAX:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the request has {len(names)} names: send at most {NAMES_MAX} in a request",
            )

        async def routed(name: str) -> Response:
            async def there(stub: Stub) -> Response:
                call = getattr(stub, method)
                return part_of(await call(request_for(name), timeout=_TIMEOUT_S, metadata=_ONCE))

            return await self._route(
                name, context, lambda: here(name), there, lambda code: refuse(name, code)
            )

        return await results_in_turns(names, routed)

    async def elsewhere(
        self, method: str, request: object, *, refuse: Callable[[ErrorCode], Response]
    ) -> list[Response]:
        """Send the request to all other live brokers, and return their responses. A broker that does not respond is
        represented by `refuse(COORDINATOR_NOT_AVAILABLE)`.
        """
        others = [
            broker.broker_id
            for broker in self._partitions.image.brokers.values()
            if not broker.fenced and broker.broker_id != self._broker_id
        ]

        async def at(broker_id: BrokerId) -> Response:
            stub = self._stub(broker_id)
            if stub is None:
                return refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            try:
                response: Response = await getattr(stub, method)(request, timeout=_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                return refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return response

        return list(await asyncio.gather(*map(at, others)))

    async def _route(
        self,
        name: str,
        context: ServerContext,
        here: Callable[[], Awaitable[Response]],
        there: Callable[[Stub], Awaitable[Response]],
        refuse: Callable[[ErrorCode], Response],
    ) -> Response:
        if not name:
            return refuse(self._nameless)
        leader = self._placement.coordinator_of(name)
        if leader is None:
            code = await self._placement.ensure_topic()
            return refuse(code or ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if leader.broker_id == self._broker_id:
            try:
                return await here()
            except CoordinatorError as error:
                return refuse(error.code)
        was_forwarded = any(key == _FORWARDED for key, _ in context.invocation_metadata() or ())
        stub = None if was_forwarded else self._stub(leader.broker_id)
        if stub is None:
            return refuse(ErrorCode.NOT_COORDINATOR)
        try:
            return await there(stub)
        except grpc.aio.AioRpcError:
            return refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _stub(self, broker_id: BrokerId) -> Stub | None:
        broker = self._partitions.image.brokers.get(broker_id)
        endpoint = None if broker is None or broker.fenced else broker.endpoint(REPLICATION)
        if endpoint is None:
            return None
        return self._make_stub(
            self._peers.channel(f"broker-{broker_id}", endpoint.host, endpoint.port)
        )
