"""What stands before every gRPC servicer for clients: who calls is found out, and refused what he has no right to.

Unary methods are checked here, by a table; a method that is not in it is refused. Streams, and Metadata,
which hides what the caller may not see, ask their `Caller` by themselves. A stream ends when the session
that it was opened with does.

Where a login is wanted, nothing that a stranger sends is read: a message may have 64 MiB. He may log in
(by metadata) and ask for the broker's health as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from odradek_broker.listeners.grpc_callers import (
    Caller,
    Callers,
    Refused,
    host_of,
    serve_as,
    tell,
)
from odradek_broker.quotas.quotas import MUTATION_RATE, REQUEST_PERCENTAGE, Quotas
from odradek_broker.security.grpc_rights import CHECKED_BY_SERVICERS, HIDDEN, MUTATIONS, RULES
from odradek_broker.security.grpc_sessions import GrpcSession

_LOGIN: Final = "/odradek.v1.AuthService/"  # how one becomes somebody
_HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
_PUBLIC: Final = ("/grpc.health.", "/grpc.reflection.")
_PERCENT_A_CALL: Final = 0.03
"""Of a second: what a unary call costs a broker's loop (300 us). How long it takes says nothing: it mostly waits."""


class Authorization(grpc.aio.ServerInterceptor):
    """Finds out who calls, and refuses what he has no right to before a servicer sees it."""

    def __init__(self, callers: Callers, quotas: Quotas | None = None) -> None:
        self._callers = callers
        self._quotas = quotas or Quotas()

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: Any,
    ) -> Any:
        """Wrap the handler of the method, if it needs that."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or method.startswith(_LOGIN):
            return handler
        if not self._callers.may_be_heard(handler_call_details.invocation_metadata):
            # A handler of streams is called before a message is read, so that who has not logged
            # in cannot make the broker take 64 MiB to refuse them.
            return (
                _unread_check(handler)
                if method == _HEALTH_CHECK
                else grpc.stream_stream_rpc_method_handler(self._refusal(method))
            )
        if method.startswith(_PUBLIC):
            return handler
        if handler.unary_unary is not None:
            made: Any = grpc.unary_unary_rpc_method_handler
            wrapped: Any = self._checked(method, handler.unary_unary)
        else:
            assert method in CHECKED_BY_SERVICERS, f"{method} is a stream that nobody checks"
            if handler.unary_stream is not None:
                made = grpc.unary_stream_rpc_method_handler
                wrapped = self._told(method, handler.unary_stream)
            else:
                made = grpc.stream_stream_rpc_method_handler
                wrapped = self._conversation(method, handler.stream_stream)
        return made(
            wrapped,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _refusal(self, method: str) -> Any:
        async def refuse(_requests: Any, context: Any) -> None:
            await self._identified(method, context)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "log in again")

        return refuse

    def _checked(self, method: str, inner: Any) -> Any:
        rule, hidden = RULES.get(method), HIDDEN.get(method)
        is_checked_inside = method in CHECKED_BY_SERVICERS

        async def checked(request: Any, context: Any) -> Any:
            caller = await self._identified(method, context)
            if self._callers.authorizer.is_on and not is_checked_inside:
                for need in [()] if rule is None else rule(request):
                    if not caller.has(need):
                        await context.abort(
                            grpc.StatusCode.PERMISSION_DENIED, caller.denied(method, need)
                        )
            answer = await inner(request, context)
            throttle_ms = self._throttle_ms(method, caller, request)
            if throttle_ms:  # by delay, not by error
                await asyncio.sleep(throttle_ms / 1000)
            if hidden is not None and self._callers.authorizer.is_on:
                field, need_of = hidden
                seen = [one for one in getattr(answer, field) if caller.has(need_of(one))]
                if len(seen) < len(getattr(answer, field)):
                    answer.ClearField(field)
                    getattr(answer, field).extend(seen)
            return answer

        return checked

    def _throttle_ms(self, method: str, caller: Caller, request: Any) -> int:
        """Count a request that was served, as the Kafka listeners do."""
        cost = MUTATIONS.get(method)
        who = (caller.principal, caller.client_id)
        wait_ms = (
            0 if cost is None else self._quotas.throttle_ms(MUTATION_RATE, *who, cost(request))
        )
        return max(wait_ms, self._quotas.throttle_ms(REQUEST_PERCENTAGE, *who, _PERCENT_A_CALL))

    def _told(self, method: str, inner: Any) -> Any:
        async def told(request: Any, context: Any) -> AsyncIterator[Any]:
            caller = await self._identified(method, context)
            with _ends_with(caller.session):
                try:
                    async for answer in inner(request, context):
                        yield answer
                except asyncio.CancelledError:
                    await _abort_if_ended(caller, context)
                    raise

        return told

    def _conversation(self, method: str, inner: Any) -> Any:
        async def conversation(requests: Any, context: Any) -> None:
            caller = await self._identified(method, context)
            with _ends_with(caller.session):
                try:
                    await inner(requests, context)
                except asyncio.CancelledError:
                    await _abort_if_ended(caller, context)
                    raise

        return conversation

    async def _identified(self, method: str, context: Any) -> Caller:
        try:
            caller = self._callers.identify(context)
        except Refused as refused:
            tell(
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


def _unread_check(handler: Any) -> Any:
    """The answer for the broker as a whole, whatever service the request names."""

    async def check(_requests: Any, context: Any) -> None:
        await context.write(await handler.unary_unary(health_pb2.HealthCheckRequest(), context))

    return grpc.stream_stream_rpc_method_handler(
        check, response_serializer=handler.response_serializer
    )


@contextmanager
def _ends_with(session: GrpcSession | None) -> Iterator[None]:
    """Cancel this task when the session ends."""
    task = asyncio.current_task()
    if session is None or task is None:
        yield
        return
    session.streams.add(task)
    try:
        yield
    finally:
        session.streams.discard(task)


async def _abort_if_ended(caller: Caller, context: Any) -> None:
    task = asyncio.current_task()
    if caller.session is not None and caller.session.is_ended and task is not None:
        task.uncancel()
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the session has ended: log in again")
