"""The values that a coordinator's state machine returns from its handlers, and those that it replays when its
partition is loaded.

The group coordinator and the transaction coordinator are such state machines. A handler returns a `Step`: records to
append, and responses and orders (requests to the host) that take effect when everything appended so far is committed.
`odradek_broker.coordination` hosts the state machines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, NewType, ParamSpec, TypeAlias, TypeVar

from msgspec import Struct

from odradek_protocol.identity import Offset, ProducerEpoch, ProducerId

RequestId = NewType("RequestId", int)
P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class NothingApplied(Exception):
    """A handler raised an unexpected exception before it applied any part of a request, so the state is unchanged."""


def judges(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that only reads a request and the state, and that a handler calls before it changes anything.

    Any exception that the function raises becomes NothingApplied. Do not decorate a function that replays a record.
    """

    @functools.wraps(function)
    def judging(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise NothingApplied(f"{function.__qualname__}: {error}") from error

    return judging


class Response(Struct, frozen=True, gc=False):
    """The response to the request with this id. The host has chosen the id."""

    request_id: RequestId
    response: Any  # its class depends on the request


class TransactionalRecords(Struct, Generic[R], frozen=True, gc=False):
    """Records of a producer's transaction, written as one transactional batch without a sequence number."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    records: tuple[R, ...]


class TransactionMarker(Struct, frozen=True, gc=False):
    """The control batch that ends a producer's transaction in this partition."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool
    coordinator_epoch: int


IdentityWrite: TypeAlias = TransactionalRecords[R] | TransactionMarker


class Step(Struct, Generic[R], frozen=True, gc=False):
    """The result of a handler. The handler has already replayed the records into the state.

    The host appends the records as one batch, followed by `writes`. The steps of one iteration of the event loop become
    one append, in the order in which the handlers ran. Responses are sent and orders are carried out when everything
    that was appended before is committed, so they never depend on records that may still be lost. If an append fails,
    the host discards the shard and loads it again from the log.
    """

    records: tuple[R, ...] = ()
    responses: tuple[Response, ...] = ()
    orders: tuple[Any, ...] = ()  # the class of an order depends on the kind of coordinator
    writes: tuple[IdentityWrite[R], ...] = ()

    def __add__(self, other: Step[R]) -> Step[R]:
        return Step(
            self.records + other.records,
            self.responses + other.responses,
            self.orders + other.orders,
            self.writes + other.writes,
        )


NOTHING: Step[Any] = Step()


def respond(request_id: RequestId, response: Any) -> Step[Any]:
    """Return a step with a response and no records."""
    return Step(responses=(Response(request_id, response),))


class LoadedRecord(NamedTuple):
    """One record of the log, with the producer id and epoch of its batch; the id is -1 if the batch has none."""

    key: bytes
    value: bytes | None
    offset: Offset
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_transactional: bool


class LoadedMarker(NamedTuple):
    """A transaction marker in the log, which ends its producer's transaction in this partition."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool
    coordinator_epoch: int
    offset: Offset
