"""The state machine (shard) of one partition that this broker leads.

    LOADING --all records below the log end replayed--> ACTIVE --leadership lost, or a failure--> CLOSED

A handler reads state that includes all records appended so far. Its response waits until all of these records are
committed, so that no client sees state that may still be lost. Responses are sent in the order in which the handlers
ran, and orders (work outside of the state machine) are carried out in the same order.

The steps of one iteration of the event loop become one append. Thus many requests that arrive together cost one write,
and a single request does not wait for others.

If an append or a handler fails, the state is ahead of the log and cannot be used any more. The shard closes, all
waiting requests fail with NOT_COORDINATOR, and the host loads a new shard. A failed handler is a bug, which affects
only this partition. A handler that raises NothingApplied failed before it changed any state. In that case only its
request fails, so that a client cannot close the shard by repeating the request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

from odradek_broker.compiled import Mutable, Value
from odradek_broker.coordination.turn_writes import TurnWrites
from odradek_broker.coordinator_step import NothingApplied, RequestId, Response, Step
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_protocol.identity import LeaderEpoch, PartitionIndex
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_runtime.logs import event_log

Shard = TypeVar("Shard")
T = TypeVar("T")
WAITING_MAX = 50_000
_log = event_log(__name__)


class CoordinatorError(Exception):
    """The coordinator could not handle the request. `code` is the error code of the response."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


def returned(response: T | CoordinatorError) -> T:
    """Return the response, or raise it if it is a CoordinatorError."""
    if isinstance(response, CoordinatorError):
        raise response
    return response


class ShardState(Enum):
    """The state of a shard: being loaded, handling requests, or closed for good."""

    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class _Write(Mutable):
    """One append to the log, with the responses and orders that wait for its commit."""

    effects: deque[Response | Order]
    is_committed: bool = False


class Order(Value, frozen=True):
    """Work outside of the state machine that a step requests. It waits in the same queue as the responses."""

    order: Any


class HostedShard(Generic[Shard]):
    """The state machine of one partition during one leader epoch.

    `append(writes, on_done)` appends the records of one iteration of the event loop, if the leader epoch is still the
    same. `on_closed` is called only if the shard was active before. `breaks` is how many earlier shards of this
    partition failed in a row.
    """

    def __init__(
        self,
        *,
        partition: PartitionIndex,
        leader_epoch: LeaderEpoch,
        shard: Shard,
        new_writes: Callable[[], TurnWrites],
        append: Callable[[TurnWrites, Callable[[ProduceOutcome], None]], None],
        obey: Callable[[Any], None],
        on_broken: Callable[[], None],
        on_closed: Callable[[], None],
        breaks: int,
    ) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.shard = shard
        self.new_writes = new_writes
        self.append = append
        self.obey = obey
        self.on_broken = on_broken
        self.on_closed = on_closed
        self.breaks = breaks
        self.state = ShardState.LOADING
        self.active_since_s = 0.0  # on the event loop's clock
        self._waiting: dict[int, tuple[asyncio.Future[Any], Callable[[Any], Any]]] = {}
        # The records of this iteration of the event loop. The responses and orders that wait for these records are
        # in the last item of `_writes`.
        self._turn: TurnWrites | None = None
        self._writes: deque[_Write] = deque()
        self._next_request_id = 0

    def activate(self, now_s: float) -> None:
        """Begin to handle requests, because the log has been replayed. `now_s` is the time of the event loop."""
        self.state, self.active_since_s = ShardState.ACTIVE, now_s

    def ask(
        self,
        decide: Callable[[Shard, RequestId], Step[Any]],
        shape: Callable[[Any], Any] = returned,
    ) -> asyncio.Future[Any]:
        """Handle one request. Return a future that is done when the response may be sent.

        The result of the future is `shape(response)`. Instead of a response, `shape` gets a CoordinatorError if the
        shard closes while the response waits (NOT_COORDINATOR), or if the handler fails (UNKNOWN_SERVER_ERROR). An
        exception that `shape` raises is set on the future.

        Raises:
            CoordinatorError: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, or COORDINATOR_NOT_AVAILABLE if too
                many requests wait.
        """
        self._require_active()
        self._next_request_id += 1
        request_id = RequestId(self._next_request_id)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future, shape
        try:
            self.take(decide(self.shard, request_id))
        except NothingApplied as error:
            _log.error(
                "Coordinator shard failed one request on an internal error; the state of the shard is unchanged",
                exc=error,
                partition=self.partition,
            )
            del self._waiting[request_id]
            _settle(future, shape, CoordinatorError(ErrorCode.UNKNOWN_SERVER_ERROR))
        except Exception as error:
            self._waiting.pop(request_id, None)
            _settle(future, shape, CoordinatorError(ErrorCode.UNKNOWN_SERVER_ERROR))
            self._failed(error)
        return future

    def take_of(self, decide: Callable[[Shard], Step[Any]]) -> None:
        """If the shard is active, let it handle an event that is not a request, and write the records of its step."""
        if self.state is not ShardState.ACTIVE:
            return
        try:
            self.take(decide(self.shard))
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        _log.error(
            "Coordinator shard failed on an internal error; the shard will be loaded again",
            exc=error,
            partition=self.partition,
        )
        self._break()

    def _break(self) -> None:
        self.close()
        self.on_broken()

    def take(self, step: Step[Any]) -> None:
        """Add the records of a step to the append of this iteration of the event loop. The step's responses and orders
        wait until this append and all earlier ones are committed.
        """
        if self.state is not ShardState.ACTIVE:
            return
        if step.records or step.writes:
            turn = self._turn
            if turn is None:
                turn = self._turn = self.new_writes()
                self._writes.append(_Write(deque()))
                asyncio.get_running_loop().call_soon(self._write_turn)
            turn.add(step)
        effects: list[Response | Order] = [*step.responses, *map(Order, step.orders)]
        if self._writes:
            self._writes[-1].effects.extend(effects)
        else:
            self._release(effects)

    def _write_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None or self.state is not ShardState.ACTIVE:
            return
        write = self._writes[-1]
        try:
            self.append(turn, lambda outcome: self._written(write, outcome))
        except Exception as error:
            self._failed(error)

    def _written(self, write: _Write, outcome: ProduceOutcome) -> None:
        if self.state is not ShardState.ACTIVE:
            return
        if outcome.error is not ErrorCode.NONE:
            self._break()
            return
        write.is_committed = True
        while self._writes and self._writes[0].is_committed:
            self._release(self._writes.popleft().effects)

    def _release(self, effects: Sequence[Response | Order] | deque[Response | Order]) -> None:
        for effect in effects:
            if isinstance(effect, Order):
                self._obey(effect.order)
                continue
            waiting = self._waiting.pop(effect.request_id, None)
            if waiting is not None:
                _settle(*waiting, effect.response)

    def _obey(self, order: Any) -> None:
        if self.state is not ShardState.ACTIVE:
            return
        try:
            self.obey(order)
        except Exception as error:
            self._failed(error)

    def _require_active(self) -> None:
        if self.state is ShardState.LOADING:
            raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if self.state is ShardState.CLOSED:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        if len(self._waiting) >= WAITING_MAX:
            self._waiting = {
                request_id: waiting
                for request_id, waiting in self._waiting.items()
                if not waiting[0].done()
            }
        if len(self._waiting) >= WAITING_MAX:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def close(self) -> None:
        """Stop handling requests, and fail all waiting requests with NOT_COORDINATOR, so that clients look up the new
        coordinator.
        """
        was_active, self.state = self.state is ShardState.ACTIVE, ShardState.CLOSED
        waiting, self._waiting = self._waiting, {}
        self._writes.clear()
        self._turn = None
        for future, shape in waiting.values():
            _settle(future, shape, CoordinatorError(ErrorCode.NOT_COORDINATOR))
            if not future.cancelled():
                # Retrieve the exception; otherwise asyncio logs it as unhandled if nothing awaits the future.
                future.exception()
        if was_active:
            self.on_closed()


def _settle(future: asyncio.Future[Any], shape: Callable[[Any], Any], response: Any) -> None:
    """Set the future's result to `shape(response)`, unless the future was cancelled because the client disconnected."""
    if future.done():
        return
    try:
        result = shape(response)
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)
