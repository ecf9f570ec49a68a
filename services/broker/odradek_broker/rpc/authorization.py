"""Authorization of clients' gRPC calls, before a servicer is called: identifies the caller and checks its rights.

This module checks unary methods by the tables of `access.rights`; a method without an entry is refused. Streams and the
method Metadata check the rights themselves, with `Caller.may`. A stream is cancelled when the session with which it was
opened ends.

On a listener that requires a login, the broker reads no message of a caller that has not logged in, because a message
may have 33 MiB. Such a caller may only log in (by the metadata of calls) and check the health of the whole broker. All
other requests are read within the limits of `rpc.intake`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from odradek_broker.access.grpc_sessions import GrpcSession
from odradek_broker.access.quotas import MUTATION_RATE, REQUEST_PERCENTAGE, Quotas
from odradek_broker.access.rights import CHECKED_BY_SERVICERS, HIDDEN, MUTATIONS, needs_of
from odradek_broker.rpc.call_counts import GrpcCalls
from odradek_broker.rpc.callers import (
    Caller,
    Callers,
    MethodHandler,
    Refused,
    ServerContext,
    current_caller,
    host_of,
    in_turns,
    log_refusal,
    serve_as,
)
from odradek_broker.rpc.intake import GrpcIntake
from odradek_broker.rpc.peers import peer_of
from odradek_protocol.access import Operation, ResourceType

_LOGIN: Final = "/odradek.v1.AuthService/"  # the service by which callers log in
_HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
_PUBLIC: Final = ("/grpc.health.", "/grpc.reflection.")
_PRODUCE: Final = "/odradek.v1.BrokerService/Produce"
_FETCH: Final = "/odradek.v1.BrokerService/Fetch"
_WRITES_SOMEWHERE: Final = [(Operation.WRITE, ResourceType.TOPIC, None)]
_PERCENT_A_CALL: Final = 0.03
"""The time for which a unary call occupies the broker's event loop, in percent of a second (300 us). This estimate, and
not the call's duration, counts against request_percentage, because most of the duration is waiting.
"""


Unary: TypeAlias = Callable[[Message, ServerContext], Awaitable[Message]]
Conversation: TypeAlias = Callable[[object, ServerContext], Awaitable[None]]


class Authorization(grpc.aio.ServerInterceptor):
    """Identifies the caller of each call. If the caller has no right to the call, the servicer does not run."""

    def __init__(
        self,
        callers: Callers,
        quotas: Quotas | None = None,
        intake: GrpcIntake | None = None,
        calls: GrpcCalls | None = None,
    ) -> None:
        self._calls = calls or GrpcCalls()
        self._callers = callers
        self._quotas = quotas or Quotas()
        self._intake = intake or GrpcIntake()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MethodHandler:
        """Wrap the handler of a method. A wrapped handler reads its request itself, within the limits of GrpcIntake."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        made = grpc.stream_stream_rpc_method_handler
        if handler is None:
            return made(self._noted(_refuse_unknown))
        # A login needs only `_noted`, because it reads only the metadata of the call.
        if method.startswith(_LOGIN):
            return made(
                self._noted(handler.stream_stream), response_serializer=handler.response_serializer
            )
        if not self._callers.may_be_heard(handler_call_details.invocation_metadata):
            # A caller that has not logged in is refused before the broker reads any of its messages.
            if method == _HEALTH_CHECK:
                return made(
                    self._noted(_unread_check(handler)),
                    response_serializer=handler.response_serializer,
                )
            return made(self._counted(method, handler, self._refusal(method)))
        is_public = method.startswith(_PUBLIC)
        if handler.unary_unary is not None:
            inner = handler.unary_unary if is_public else self._checked(method, handler.unary_unary)
            wrapped = self._unary(method, handler, inner)
        else:
            assert is_public or method in CHECKED_BY_SERVICERS, (
                f"{method} is a stream without checks"
            )
            if handler.unary_stream is not None:
                wrapped = self._pushed(method, handler)
            else:
                wrapped = self._conversation(method, handler.stream_stream)
                return made(
                    self._counted(method, handler, wrapped),
                    request_deserializer=handler.request_deserializer,
                    response_serializer=handler.response_serializer,
                )
        return made(
            self._counted(method, handler, wrapped),
            response_serializer=handler.response_serializer,
        )

    def _counted(self, method: str, handler: MethodHandler, serve: Conversation) -> Conversation:
        is_stream = handler.unary_unary is None

        async def counted(requests: object, context: ServerContext) -> None:
            self._intake.without_call.called(peer_of(context.peer()))
            with self._calls.counted(method, context, is_stream=is_stream):
                await serve(requests, context)

        return counted

    def _noted(self, serve: Conversation) -> Conversation:
        """Return a handler that records that the connection has had a call. The call is not counted by method."""

        async def noted(requests: object, context: ServerContext) -> None:
            self._intake.without_call.called(peer_of(context.peer()))
            await serve(requests, context)

        return noted

    async def _admitted(self, method: str, context: ServerContext, *, is_stream: bool) -> Caller:
        """Identify and return the caller. Abort the call if the caller has too many open calls."""
        caller = await self._identified(method, context)
        refused = self._intake.refusal(caller.owner, is_stream=is_stream, is_fetch=method == _FETCH)
        if refused is not None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refused)
        return caller

    def _unary(self, method: str, handler: MethodHandler, inner: Unary) -> Conversation:
        message = _request_of(method)

        async def respond(_requests: object, context: ServerContext) -> None:
            caller = await self._admitted(method, context, is_stream=False)
            intake, owner = self._intake, caller.owner
            with intake.held(owner):
                data = await intake.read(context, owner)
                decode = handler.request_deserializer
                async with intake.decoded(context, owner, data, message, decode) as (request, pace):
                    caller.pace = pace
                    response = await inner(request, context)
                await context.write(response)

        return respond

    def _pushed(self, method: str, handler: MethodHandler) -> Conversation:
        message = _request_of(method)

        async def pushed(_requests: object, context: ServerContext) -> None:
            caller = await self._admitted(method, context, is_stream=False)
            intake, owner = self._intake, caller.owner
            with intake.held(owner), _ends_with(caller.session):
                try:
                    data = await intake.read(context, owner)
                    decode = handler.request_deserializer
                    async with intake.decoded(context, owner, data, message, decode) as decoded:
                        request, caller.pace = decoded
                    await _serve(handler.unary_stream(request, context), context)
                except asyncio.CancelledError:
                    await _abort_if_ended(caller, context)
                    raise

        return pushed

    def _refusal(self, method: str) -> Conversation:
        async def refuse(_requests: object, context: ServerContext) -> None:
            await self._identified(method, context)
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "the session is not valid: log in again"
            )

        return refuse

    def _checked(self, method: str, inner: Unary) -> Unary:
        hidden = HIDDEN.get(method)
        is_checked_inside = method in CHECKED_BY_SERVICERS

        async def checked(request: Message, context: ServerContext) -> Message:
            caller = current_caller()
            if self._callers.authorizer.is_on and not is_checked_inside:
                async for need in in_turns(needs_of(method, request)):
                    if not caller.has(need):
                        await context.abort(
                            grpc.StatusCode.PERMISSION_DENIED, caller.denied(method, need)
                        )
            response = await inner(request, context)
            throttle_ms = self._throttle_ms(method, caller, request)
            if throttle_ms:  # a caller that exceeds its quota is delayed, not refused
                await asyncio.sleep(throttle_ms / 1000)
            if hidden is not None and self._callers.authorizer.is_on:
                field, need_of = hidden
                items = getattr(response, field)
                visible = [item async for item in in_turns(items) if caller.has(need_of(item))]
                if len(visible) < len(items):
                    response.ClearField(field)
                    getattr(response, field).extend(visible)
            return response

        return checked

    def _throttle_ms(self, method: str, caller: Caller, request: Message) -> int:
        """Count a request against the caller's quotas, as the Kafka listeners do. Return how long to delay its
        response.
        """
        cost = MUTATIONS.get(method)
        client = (caller.principal, caller.client_id)
        wait_ms = (
            0 if cost is None else self._quotas.throttle_ms(MUTATION_RATE, *client, cost(request))
        )
        return max(wait_ms, self._quotas.throttle_ms(REQUEST_PERCENTAGE, *client, _PERCENT_A_CALL))

    def _conversation(
        self, method: str, inner: Callable[[object, ServerContext], object]
    ) -> Conversation:
        async def conversation(requests: object, context: ServerContext) -> None:
            caller = await self._admitted(method, context, is_stream=True)
            owner, is_fetch = caller.owner, method == _FETCH
            caller.pace = self._intake.budget.turns.pace(owner)
            is_in_vain = method == _PRODUCE and not caller.has(_WRITES_SOMEWHERE)
            if is_in_vain and not self._intake.in_vain.has_room(owner, 1):
                await context.abort(
                    grpc.StatusCode.PERMISSION_DENIED, caller.denied(method, _WRITES_SOMEWHERE)
                )
            with (
                self._intake.held(owner, is_stream=True, is_fetch=is_fetch, is_in_vain=is_in_vain),
                _ends_with(caller.session),
                self._intake.watched(context, owner, is_fetch=is_fetch) as caller.stream,
            ):
                try:
                    await _serve(inner(requests, context), context)
                except asyncio.CancelledError:
                    await _abort_if_ended(caller, context)
                    raise

        return conversation

    async def _identified(self, method: str, context: ServerContext) -> Caller:
        try:
            caller = self._callers.identify(context)
        except Refused as refused:
            log_refusal(
                self._callers.refusals,
                refused.kind,
                refused.principal,
                host_of(context.peer()),
                request=method,
                reason=refused.details,
            )
            await context.abort(refused.code, refused.details)
            raise
        serve_as(caller)
        return caller


def _request_of(method: str) -> Descriptor:
    service, _, name = method[1:].rpartition("/")
    return descriptor_pool.Default().FindServiceByName(service).methods_by_name[name].input_type


async def _serve(served: object, context: ServerContext) -> None:
    """Run a stream's handler: a generator of responses, or a coroutine that writes them itself."""
    if isinstance(served, AsyncIterator):
        async for response in served:
            await context.write(response)
    else:
        assert isinstance(served, Awaitable), served
        await served


async def _refuse_unknown(_requests: object, context: ServerContext) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this listener has no such method")


def _unread_check(handler: MethodHandler) -> Conversation:
    """Return a function that ignores the request, which is not read, and reports the health of the whole broker."""

    async def check(_requests: object, context: ServerContext) -> None:
        await context.write(await handler.unary_unary(health_pb2.HealthCheckRequest(), context))

    return check


@contextmanager
def _ends_with(session: GrpcSession | None) -> Iterator[None]:
    """Cancel the current task when the session ends."""
    task = asyncio.current_task()
    if session is None or task is None:
        yield
        return
    session.streams.add(task)
    try:
        yield
    finally:
        session.streams.discard(task)


async def _abort_if_ended(caller: Caller, context: ServerContext) -> None:
    task = asyncio.current_task()
    if caller.stream is not None and caller.stream.is_ended and task is not None:
        task.uncancel()
        await context.abort(
            grpc.StatusCode.UNAVAILABLE,
            f"{caller.owner} has sent too many bytes of unfinished messages: open a new stream and send again",
        )
    if caller.session is not None and caller.session.is_ended and task is not None:
        task.uncancel()
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the session has ended: log in again")
