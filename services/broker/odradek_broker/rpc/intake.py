"""Limits on the requests of gRPC clients: the number of calls, of partly received requests, and of items in a request.

gRPC has a single limit of the message size for a listener, which must allow the largest record. gRPC keeps the received
part of a message as long as the call lasts. Therefore gRPC is not allowed to read the requests of unary calls at once.
A call waits until its request may be read, and until then costs only the flow-control window of its stream. Few
requests are read at the same time, and each has a time limit. The items of a request are counted before it is decoded
(`refusal_steps`). A long request is decoded and served in steps, between which other work runs.

Everything counts against the share of the caller's principal or, without a principal, its address
(`odradek_runtime.budget.shares.owner_of`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from odradek_broker.rpc.callers import ServerContext
from odradek_broker.rpc.connections_without_call import ConnectionsWithoutCall
from odradek_broker.rpc.peers import peer_of
from odradek_broker.rpc.unfinished import (
    FETCH_WINDOW_BYTES,
    WINDOW_BYTES,
    UnfinishedMessages,
    WatchedStream,
)
from odradek_protocol.kafka.request_decoding import STRING_BYTES_MAX
from odradek_runtime.budget.client_budget import (
    ITEMS_MAX,
    LONG_REQUEST_BYTES_MIN,
    ClientBudget,
    ShareLines,
    decoded_bytes,
)
from odradek_runtime.budget.loop_turns import Pace
from odradek_runtime.budget.shares import Shares
from odradek_runtime.clock import monotonic_ms

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIELDS_PER_ITEM_MAX: Final = 12
_FIELDS_PER_STEP: Final = 200
# The values of the bytes of a varint, except its last byte.
_CONTINUATION_BYTES: Final = bytes(range(0x80, 0x100))
_shapes: dict[str, dict[int, _Field]] = {}


class _Field:
    """The properties of a protobuf field that are needed to count its items."""

    __slots__ = ("inner", "is_packed", "is_repeated", "is_string", "name")

    # Any, because the class of the descriptor depends on the implementation of protobuf.
    def __init__(self, field: Any) -> None:
        self.name: str = field.name
        self.is_repeated: bool = field.is_repeated
        self.is_string = field.type == FieldDescriptor.TYPE_STRING
        self.inner: Descriptor | None = field.message_type
        self.is_packed = (
            self.is_repeated
            and self.inner is None
            and field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
        )


def refusal_steps(
    message: Descriptor, data: bytes, items_max: int
) -> Generator[None, None, str | None]:
    """Count the items in an encoded message. Return an error text if there are too many items, or None if the message
    may be decoded.

    Decoding is one call into C, during which the event loop is blocked, and two bytes of a message can become an object
    of a hundred bytes. Therefore a long message is scanned first, in steps between which other work runs, and a message
    with too many items is refused before any object is created.
    """
    items = fields = position = 0
    fields_max = items_max * _FIELDS_PER_ITEM_MAX
    levels = [(len(data), _shape(message))]
    while levels:
        end, shape = levels[-1]
        if position >= end:
            if position > end:
                return _MALFORMED
            levels.pop()
            continue
        fields += 1
        if fields > fields_max:
            return f"the request has more than {fields_max} fields: send several smaller requests"
        if fields % _FIELDS_PER_STEP == 0:
            yield
        try:
            key, position = _varint(data, position)
            field, wire_type = shape.get(key >> 3), key & 7
            if wire_type == _VARINT:
                _, position = _varint(data, position)
            elif wire_type == _FIXED64:
                position += 8
            elif wire_type == _FIXED32:
                position += 4
            elif wire_type == _BYTES:
                size, position = _varint(data, position)
            else:
                return _MALFORMED
        except IndexError:
            return _MALFORMED
        if field is not None and field.is_repeated:
            items += not (field.is_packed and wire_type == _BYTES)
        if wire_type == _BYTES:
            if position + size > end:
                return _MALFORMED
            if field is not None:
                if field.is_string and size > STRING_BYTES_MAX:
                    return f"{field.name} has {size} bytes; the limit is {STRING_BYTES_MAX}"
                if field.is_packed:
                    packed = data[position : position + size]
                    items += len(packed.translate(None, _CONTINUATION_BYTES))
                if field.inner is not None:
                    levels.append((position + size, _shape(field.inner)))
                    size = 0
            position += size
        if items > items_max:
            return f"the request has more than {items_max} items: send several smaller requests"
    return None


_MALFORMED: Final = "the request is not a valid protobuf message of its type"


def _shape(message: Descriptor) -> dict[int, _Field]:
    shape = _shapes.get(message.full_name)
    if shape is None:
        shape = {field.number: _Field(field) for field in message.fields}
        _shapes[message.full_name] = shape
    return shape


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = data[position]
    position += 1
    if number < 0x80:
        return number, position
    number &= 0x7F
    for shift in range(7, 70, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise IndexError("the message has a varint of more than ten bytes")


M = TypeVar("M", bound=Message)
REQUEST_BYTES_MAX: Final = 4 << 20
"""The size limit of every request except Produce, which contains records."""
REQUEST_S_MAX: Final = 10.0
"""The time within which a request must arrive after the broker has begun to read it."""
_CALLS_MAX, _CALLS_OWNER_MAX = 16_384, 4_096
_STREAMS_MAX, _STREAMS_OWNER_MAX = 4_096, 512
_FETCHES_MAX, _FETCHES_OWNER_MAX = 8_192, 2_048
_IN_VAIN_MAX, _IN_VAIN_OWNER_MAX = 64, 2
_UNREAD_MAX, _UNREAD_OWNER_MAX = 1_024, 256
_READ_AT_ONCE_MAX, _READ_AT_ONCE_OWNER_MAX = 32, 4


class GrpcIntake:
    """Limits the requests of callers. All gRPC listeners of a broker share one object."""

    def __init__(
        self, budget: ClientBudget | None = None, *, request_s_max: float = REQUEST_S_MAX
    ) -> None:
        self.budget: Final = budget or ClientBudget()
        self._request_s_max = request_s_max
        self.messages: Final = UnfinishedMessages()
        self.without_call: Final = ConnectionsWithoutCall(self.budget.refusals)
        self.calls: Final = Shares(total_max=_CALLS_MAX, owner_max=_CALLS_OWNER_MAX)
        self.streams: Final = Shares(total_max=_STREAMS_MAX, owner_max=_STREAMS_OWNER_MAX)
        """The number of streams whose requests contain records."""
        self.fetches: Final = Shares(total_max=_FETCHES_MAX, owner_max=_FETCHES_OWNER_MAX)
        """The number of Fetch streams, which have small requests. A gateway has one stream for each consumer instance.
        """
        self.in_vain: Final = Shares(total_max=_IN_VAIN_MAX, owner_max=_IN_VAIN_OWNER_MAX)
        """The number of Produce streams of callers that may write to no topic. A few such streams are allowed, so that
        the response can contain the error of each topic.
        """
        self.unread: Final = Shares(total_max=_UNREAD_MAX, owner_max=_UNREAD_OWNER_MAX)
        self.reads: Final = ShareLines(
            Shares(total_max=_READ_AT_ONCE_MAX, owner_max=_READ_AT_ONCE_OWNER_MAX)
        )

    def refusal(self, owner: str, *, is_stream: bool = False, is_fetch: bool = False) -> str | None:
        """Return an error text if the owner may not begin another call, or None if it may."""
        refused = self.calls.refusal(owner, 1, "calls")
        if refused is None and is_stream:
            streams, kind = (
                (self.fetches, "Fetch streams") if is_fetch else (self.streams, "request streams")
            )
            refused = streams.refusal(owner, 1, kind)
        return refused

    @contextmanager
    def held(
        self,
        owner: str,
        *,
        is_stream: bool = False,
        is_fetch: bool = False,
        is_in_vain: bool = False,
    ) -> Iterator[None]:
        """Count a call as open until the body of the `with` statement ends."""
        streams = self.fetches if is_fetch else self.streams
        counted = [self.calls, *[streams] * is_stream, *[self.in_vain] * is_in_vain]
        for shares in counted:
            shares.take(owner, 1)
        try:
            yield
        finally:
            for shares in counted:
                shares.give_back(owner, 1)

    async def read(self, context: ServerContext, owner: str) -> bytes:
        """Read and return the request of a unary call. Abort the call if the request does not arrive in time."""
        refused = self.unread.refusal(owner, 1, "calls whose request has not arrived")
        if refused is not None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refused)
        self.unread.take(owner, 1)
        try:
            async with self.reads.held(owner, 1), asyncio.timeout(self._request_s_max):
                data = await context.read()
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"the request did not arrive within {self._request_s_max:g} s after the broker began to read it",
            )
        finally:
            self.unread.give_back(owner, 1)
        if data is grpc.aio.EOF:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the call ended without a request"
            )
        assert isinstance(data, bytes), type(data)
        self.messages.called(peer_of(context.peer()), len(data))
        return data

    @contextmanager
    def watched(
        self, context: ServerContext, owner: str, *, is_fetch: bool = False
    ) -> Iterator[WatchedStream]:
        """Watch a stream of requests until the body of the `with` statement ends. The current task is cancelled if the
        client sends too many bytes of unfinished messages.
        """
        task = asyncio.current_task()
        assert task is not None
        now_s = monotonic_ms() / 1000
        window_bytes = FETCH_WINDOW_BYTES if is_fetch else WINDOW_BYTES
        stream = self.messages.begin(
            peer_of(context.peer()), owner, now_s, task.cancel, window_bytes=window_bytes
        )
        try:
            yield stream
        finally:
            self.messages.finish(stream)

    @asynccontextmanager
    async def decoded(
        self,
        context: ServerContext,
        owner: str,
        data: bytes,
        message: Descriptor,
        decode: Callable[[bytes], M],
    ) -> AsyncIterator[tuple[M, Pace]]:
        """Decode a request, and yield the request and the `Pace` by which its handler lets other work run. Abort the
        call if the request is too large.

        The memory of a long request counts against the owner's share until the body of the `async with` statement ends.
        """
        pace = self.budget.turns.pace(owner)
        held = decoded_bytes(len(data)) if len(data) >= LONG_REQUEST_BYTES_MIN else 0
        async with self.budget.decoded.held(owner, held if len(data) <= REQUEST_BYTES_MAX else 0):
            yield await decoded(context, pace, data, message, decode), pace


@contextmanager
def call_errors() -> Iterator[None]:
    """Raise the AbortError of an aborted call instead of the ExceptionGroup that contains it, and drop InternalErrors,
    which gRPC raises after the client has disconnected.

    A TaskGroup raises an ExceptionGroup, which gRPC would log as an unexpected error of the servicer.
    """
    try:
        yield
    except BaseExceptionGroup as errors:
        aborted, _ = errors.split(grpc.aio.AbortError)
        if aborted is not None:
            raise aborted.exceptions[0] from None
        _, others = errors.split(grpc.aio.InternalError)
        if others is not None:
            raise others from None


async def decoded(
    context: ServerContext,
    pace: Pace,
    data: bytes,
    message: Descriptor,
    decode: Callable[[bytes], M],
) -> M:
    """Decode a request, in steps if it is long. Abort the call if the request is too large or has too many items."""
    if len(data) > REQUEST_BYTES_MAX:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"the request has {len(data)} bytes; the limit is {REQUEST_BYTES_MAX}",
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
