"""What gRPC clients send, taken in with bounds: how many calls, how many half requests, how much a request names.

gRPC itself only knows one limit of a message's size for a listener, which must let the largest
record pass, and keeps as much of a message as has arrived for as long as its call lasts. So the
requests of unary calls are not left to gRPC: a call waits for its turn to be read, unread it costs
no more than the window of its stream; few are read at once, and each has a time limit. A request is
counted before it is decoded (`message_items`), and what is long is decoded and served in turns.

Who pays is `odradek_runtime.budget.shares.owner_of`: the principal, or the address without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from odradek_broker.rpc.callers import ServerContext
from odradek_broker.rpc.message_items import refusal_steps
from odradek_runtime.budget.client_budget import (
    ITEMS_MAX,
    LONG_REQUEST_BYTES_MIN,
    ClientBudget,
    ShareLines,
    decoded_bytes,
)
from odradek_runtime.budget.loop_turns import Pace
from odradek_runtime.budget.shares import Shares

M = TypeVar("M", bound=Message)
REQUEST_BYTES_MAX: Final = 4 << 20
"""Of all requests but Produce, which carries records."""
REQUEST_S_MAX: Final = 10.0
"""Within which a request is there, from when the broker begins to read it."""
_CALLS_MAX, _CALLS_OWNER_MAX = 10_000, 2_000
_STREAMS_MAX, _STREAMS_OWNER_MAX = 4_096, 512
_IN_VAIN_MAX, _IN_VAIN_OWNER_MAX = 64, 2
_UNREAD_MAX, _UNREAD_OWNER_MAX = 1_024, 256
_READ_AT_ONCE_MAX, _READ_AT_ONCE_OWNER_MAX = 32, 4


class GrpcIntake:
    """One for all listeners of a broker."""

    def __init__(
        self, budget: ClientBudget | None = None, *, request_s_max: float = REQUEST_S_MAX
    ) -> None:
        self.budget: Final = budget or ClientBudget()
        self._request_s_max = request_s_max
        self.calls: Final = Shares(total_max=_CALLS_MAX, owner_max=_CALLS_OWNER_MAX)
        self.streams: Final = Shares(total_max=_STREAMS_MAX, owner_max=_STREAMS_OWNER_MAX)
        self.in_vain: Final = Shares(total_max=_IN_VAIN_MAX, owner_max=_IN_VAIN_OWNER_MAX)
        """Produce streams of those who may write nowhere: enough for them to be told so by topic."""
        self.unread: Final = Shares(total_max=_UNREAD_MAX, owner_max=_UNREAD_OWNER_MAX)
        self.reads: Final = ShareLines(
            Shares(total_max=_READ_AT_ONCE_MAX, owner_max=_READ_AT_ONCE_OWNER_MAX)
        )

    def refusal(self, owner: str, *, is_stream: bool) -> str | None:
        """Why the owner may not begin another call; None if it may."""
        refused = self.calls.refusal(owner, 1, "calls")
        if refused is None and is_stream:
            refused = self.streams.refusal(owner, 1, "streams of requests")
        return refused

    @contextmanager
    def held(
        self, owner: str, *, is_stream: bool = False, is_in_vain: bool = False
    ) -> Iterator[None]:
        """Count a call that was not refused, until the body ends."""
        counted = [self.calls, *[self.streams] * is_stream, *[self.in_vain] * is_in_vain]
        for shares in counted:
            shares.take(owner, 1)
        try:
            yield
        finally:
            for shares in counted:
                shares.give_back(owner, 1)

    async def read(self, context: ServerContext, owner: str) -> bytes:
        """Read the request of a unary call; ends a call that sends none in time."""
        refused = self.unread.refusal(owner, 1, "requests that arrive")
        if refused is not None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refused)
        self.unread.take(owner, 1)
        try:
            async with self.reads.held(owner, 1), asyncio.timeout(self._request_s_max):
                data = await context.read()
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"the request did not arrive within {self._request_s_max:g} s",
            )
        finally:
            self.unread.give_back(owner, 1)
        if data is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "there is no request")
        assert isinstance(data, bytes), type(data)
        return data

    @asynccontextmanager
    async def decoded(
        self,
        context: ServerContext,
        owner: str,
        data: bytes,
        message: Descriptor,
        decode: Callable[[bytes], M],
    ) -> AsyncIterator[tuple[M, Pace]]:
        """The request, and the pace at which to serve it; a call that asks too much ends instead.

        What a long request takes in memory is held until the body ends.
        """
        pace = self.budget.turns.pace(owner)
        held = decoded_bytes(len(data)) if len(data) >= LONG_REQUEST_BYTES_MIN else 0
        async with self.budget.decoded.held(owner, held if len(data) <= REQUEST_BYTES_MAX else 0):
            yield await decoded(context, pace, data, message, decode), pace


async def decoded(
    context: ServerContext,
    pace: Pace,
    data: bytes,
    message: Descriptor,
    decode: Callable[[bytes], M],
) -> M:
    """A request that is not too large and names not too much, in turns if it is long; others end the call."""
    if len(data) > REQUEST_BYTES_MAX:
        await context.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"a request of {len(data)} bytes, at most {REQUEST_BYTES_MAX}",
        )
    if len(data) < LONG_REQUEST_BYTES_MIN:
        return await _decoded(context, data, decode)
    await pace.turn()
    refused = await pace.run(refusal_steps(message, data, ITEMS_MAX))
    if refused is not None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, refused)
    await pace.turn()
    request = await _decoded(context, data, decode)
    await pace.turn()
    return request


async def _decoded(context: ServerContext, data: bytes, decode: Callable[[bytes], M]) -> M:
    try:
        return decode(data)
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
