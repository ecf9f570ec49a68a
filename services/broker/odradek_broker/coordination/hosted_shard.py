"""One state machine on one partition that this broker leads.

    LOADING --all records below the end replayed--> ACTIVE --resigned, or an append failed--> CLOSED

A handler decides on state that has everything appended so far replayed; its answer waits until all of that is
committed, so that nobody is told, or reads, what may yet be lost. Answers leave in the order of the decisions.
If an append fails, or a handler does, the state is ahead of the log and is of no more use: the shard closes, everyone
who waits is told NOT_COORDINATOR, and the host loads a new one. A failed handler is a bug: it costs this partition a
load, and the others nothing. A handler that raises NothingApplied met its bug while it judged the request: only that
request fails, so that nobody can end a shard by repeating it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from odradek_broker.groups.step import NothingApplied
from odradek_broker.replication.partition_service import ProduceOutcome
from odradek_protocol.identity import LeaderEpoch, PartitionIndex
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_runtime.logs import event_log

Shard = TypeVar("Shard")
WAITING_MAX = 50_000
_log = event_log(__name__)


class CoordinatorError(Exception):
    """The request cannot be decided here and now; `code` says why, for the wire."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class DecidedAnswer(Protocol):
    """A response to one request."""

    @property
    def request_id(self) -> int: ...
    @property
    def response(self) -> Any: ...


class DecidedStep(Protocol):
    """What a handler gives: records, replayed already, and answers."""

    @property
    def records(self) -> Sequence[Any]: ...
    @property
    def answers(self) -> Sequence[DecidedAnswer]: ...


class ShardState(Enum):
    """See the module's essay."""

    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


@dataclass(slots=True)
class _Write:
    """One appended batch, and the answers that leave when it is committed."""

    answers: deque[DecidedAnswer]
    is_committed: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class HostedShard(Generic[Shard]):
    """`append(records, on_done)` writes one batch at the leader epoch of this life of the shard."""

    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    shard: Shard
    append: Callable[[Sequence[Any], Callable[[ProduceOutcome], None]], None]
    on_broken: Callable[[], None]
    breaks: int = 0  # how often in a row those before it broke
    state: ShardState = ShardState.LOADING
    active_since_s: float = 0.0  # of the loop's clock
    _waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    _writes: deque[_Write] = field(default_factory=deque)
    _next_request_id: int = 0

    def activate(self, now_s: float) -> None:
        """It is loaded: it decides from now on."""
        self.state, self.active_since_s = ShardState.ACTIVE, now_s

    def ask(self, decide: Callable[[Shard, int], DecidedStep]) -> asyncio.Future[Any]:
        """Decide one request; the future gives its response when it may leave.

        Raises:
            CoordinatorError: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR; the future raises it too, when the
                shard closes while the answer waits, and UNKNOWN_SERVER_ERROR when the handler failed.
        """
        self._require_active()
        self._next_request_id += 1
        request_id = self._next_request_id
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            self.take(decide(self.shard, request_id))
        except NothingApplied as error:
            _log.error(
                "A coordinator could not judge a request", exc=error, partition=self.partition
            )
            del self._waiting[request_id]
            future.set_exception(CoordinatorError(ErrorCode.UNKNOWN_SERVER_ERROR))
        except Exception as error:
            self._waiting.pop(request_id, None)
            future.set_exception(CoordinatorError(ErrorCode.UNKNOWN_SERVER_ERROR))
            self._failed(error)
        return future

    def take_of(self, decide: Callable[[Shard], DecidedStep]) -> None:
        """Let the shard decide, if it is active, and take the step."""
        if self.state is not ShardState.ACTIVE:
            return
        try:
            self.take(decide(self.shard))
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        _log.error("A coordinator failed", exc=error, partition=self.partition)
        self._break()

    def _break(self) -> None:
        self.close()
        self.on_broken()

    def take(self, step: DecidedStep) -> None:
        """Write a step's records and let its answers leave in their turn; timers' steps come here too."""
        if self.state is not ShardState.ACTIVE:
            return
        if step.records:
            write = _Write(deque(step.answers))
            self._writes.append(write)
            self.append(step.records, lambda outcome: self._written(write, outcome))
        elif self._writes:
            self._writes[-1].answers.extend(step.answers)
        else:
            self._release(step.answers)

    def _written(self, write: _Write, outcome: ProduceOutcome) -> None:
        if self.state is not ShardState.ACTIVE:
            return
        if outcome.error is not ErrorCode.NONE:
            self._break()
            return
        write.is_committed = True
        while self._writes and self._writes[0].is_committed:
            self._release(self._writes.popleft().answers)

    def _release(self, answers: Sequence[DecidedAnswer] | deque[DecidedAnswer]) -> None:
        for told in answers:
            future = self._waiting.pop(told.request_id, None)
            if future is not None and not future.done():  # a client may have gone
                future.set_result(told.response)

    def _require_active(self) -> None:
        if self.state is ShardState.LOADING:
            raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if self.state is ShardState.CLOSED:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        if len(self._waiting) >= WAITING_MAX:
            self._waiting = {i: one for i, one in self._waiting.items() if not one.done()}
        if len(self._waiting) >= WAITING_MAX:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def close(self) -> None:
        """No more decisions; all who wait are told to look for another coordinator."""
        self.state = ShardState.CLOSED
        waiting, self._waiting = self._waiting, {}
        self._writes.clear()
        for future in waiting.values():
            if not future.done():
                future.set_exception(CoordinatorError(ErrorCode.NOT_COORDINATOR))
                future.exception()  # whoever waits sees it; nobody may
