"""A shard of the transaction coordinator with a clock and a log, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from odradek_broker.coordinator_step import RequestId, Step
from odradek_broker.settled_clock import SettledClock
from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.messages import (
    AbortStaged,
    AbortTransaction,
    AddPartitions,
    CompleteStep,
    EndTransaction,
    ForgetSteps,
    InitProducer,
    OpenStaged,
    PrepareStaged,
    RenewStaged,
    SendMarkers,
    VerifyPartitions,
)
from odradek_broker.transactions.settings import TransactionSettings
from odradek_broker.transactions.transaction import (
    Transaction,
    TransactionalId,
    TransactionPartition,
    TransactionRecord,
    TransactionStatus,
)
from odradek_broker.transactions.transaction_codec import decode, encode
from odradek_broker.transactions.transaction_shard import TransactionShard
from odradek_broker.transactions.transaction_table import TransactionTable
from odradek_protocol.identity import (
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode

ORDERS = TransactionalId("orders-1")
TIMEOUT_MS = 60_000
WALL_MS = 1_700_000_000_000
FIRST, SECOND, THIRD = (
    TransactionPartition(TopicId(b"t" * 16), TopicName("t"), PartitionIndex(n)) for n in range(3)
)


def identity(producer_id: int, epoch: int) -> ProducerIdentity:
    return ProducerIdentity(ProducerId(producer_id), ProducerEpoch(epoch))


@dataclass
class Coordinator:
    """A shard of the transaction coordinator, its clocks and its log.

    After each step, a copy that replays the log must have the same state.
    """

    settings: TransactionSettings = field(default_factory=TransactionSettings)
    shard: TransactionShard = field(init=False)
    copy: TransactionTable = field(init=False)
    now_ms: int = 5_000
    wall_ms: int = WALL_MS
    log: list[TransactionRecord] = field(default_factory=list)
    orders: list[Any] = field(default_factory=list)
    responses: dict[RequestId, Any] = field(default_factory=dict)
    has_producer_ids: bool = True
    can_write: bool = True
    _producer_ids: Any = field(default_factory=lambda: count(1_000))
    _request_ids: Any = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.shard = TransactionShard(settings=self.settings)
        self.copy = TransactionTable(settings=self.settings)

    @property
    def _clocks(self) -> dict[str, int]:
        if self.has_producer_ids:
            ids = [ProducerId(next(self._producer_ids)) for _ in range(self.shard.reserve.missing)]
            self.shard.reserve.add(ids)
        return {"now_ms": self.now_ms, "wall_ms": self.wall_ms}

    def take(self, step: Step[TransactionRecord]) -> None:
        for response in step.responses:
            assert response.request_id not in self.responses, "a request got two responses"
            self.responses[response.request_id] = response.response
        self.orders += step.orders
        for record in step.records:
            self.log.append(record)
            read = decode(*encode(record))
            assert read == record
            self.copy.replay(read)
        assert dict(self.copy.items()) == dict(self.shard.table.items())

    def ask(self, request: Any) -> Any:
        """Return the response, or None while the request is held."""
        return self.responses.get(self.ask_later(request))

    def ask_later(self, request: Any) -> RequestId:
        request_id = RequestId(next(self._request_ids))
        clocks = self._clocks
        match request:
            case InitProducer():
                self.take(self.shard.handle_init(request_id, request, **clocks))
            case AddPartitions():
                self.take(self.shard.handle_add(request_id, request, **clocks))
            case VerifyPartitions():
                self.take(self.shard.handle_verify(request_id, request))
            case EndTransaction():
                self.take(self.shard.handle_end(request_id, request, **clocks))
            case AbortTransaction():
                self.take(self.shard.handle_abort(request_id, request, **clocks))
            case OpenStaged():
                self.take(self.shard.staged.handle_open(request_id, request, **clocks))
            case RenewStaged():
                self.take(self.shard.staged.handle_renew(request_id, request, now_ms=self.now_ms))
            case PrepareStaged():
                self.take(self.shard.staged.handle_prepare(request_id, request, **clocks))
            case CompleteStep():
                self.take(self.shard.staged.handle_complete(request_id, request, **clocks))
            case AbortStaged():
                self.take(self.shard.staged.handle_abort(request_id, request, **clocks))
            case ForgetSteps():
                self.take(self.shard.staged.handle_forget(request_id, request))
            case _:
                raise AssertionError(request)
        return request_id

    def init(
        self, present: ProducerIdentity | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> ProducerIdentity:
        """Send InitProducerId, and return the producer id and epoch that the coordinator
        assigns.
        """
        response = self.ask(
            InitProducer(transactional_id=ORDERS, timeout_ms=timeout_ms, identity=present)
        )
        assert response.error is ErrorCode.NONE, response
        got: ProducerIdentity = response.identity
        return got

    def add(
        self,
        present: ProducerIdentity,
        *partitions: TransactionPartition,
        is_tv2: bool = True,
    ) -> ErrorCode:
        response = self.ask(add(present, *partitions, is_tv2=is_tv2))
        error: ErrorCode = response.error
        return error

    def end(self, present: ProducerIdentity, *, is_commit: bool, is_tv2: bool = True) -> Any:
        return self.ask(end(present, is_commit=is_commit, is_tv2=is_tv2))

    @property
    def state(self) -> Transaction:
        state = self.shard.table.get(ORDERS)
        assert state is not None
        return state

    @property
    def markers(self) -> list[SendMarkers]:
        return [order for order in self.orders if isinstance(order, SendMarkers)]

    def mark(self, *partitions: TransactionPartition, error: ErrorCode = ErrorCode.NONE) -> None:
        """Acknowledge the markers of the last decision, for these partitions or by default for
        all.
        """
        order = self.markers[-1]
        for partition in partitions or sorted(order.partitions):
            self.take(self.shard.handle_marked(order.decision, partition, error, **self._clocks))

    def tick(self, elapsed_ms: int = 0) -> None:
        self.now_ms += elapsed_ms
        self.wall_ms += elapsed_ms
        self.take(self.shard.tick(can_write=self.can_write, **self._clocks))

    def move(self, clock: SettledClock | None = None) -> None:
        """Let another coordinator load the log, or the same one again if its clock is given."""
        reserve = self.shard.reserve
        self.shard = TransactionShard(settings=self.settings, clock=clock or SettledClock())
        self.shard.reserve = reserve  # so that tests can name the next producer id
        for record in self.log:
            read = decode(*encode(record))
            assert read is not None
            self.shard.table.replay(read)
        self.take(self.shard.loaded(now_ms=self.now_ms, wall_ms=self.wall_ms))

    def put(self, state: Transaction) -> None:
        """Start with this state, as if it had been loaded."""
        self.log.append(TransactionRecord(ORDERS, state))
        self.copy.replay(self.log[-1])
        self.move()


def add(
    present: ProducerIdentity, *partitions: TransactionPartition, is_tv2: bool = True
) -> AddPartitions:
    return AddPartitions(
        transactional_id=ORDERS,
        identity=present,
        partitions=partitions or (FIRST,),
        is_tv2=is_tv2,
    )


def verify(present: ProducerIdentity, *partitions: TransactionPartition) -> VerifyPartitions:
    return VerifyPartitions(
        transactional_id=ORDERS, identity=present, partitions=partitions or (FIRST,)
    )


def end(present: ProducerIdentity, *, is_commit: bool, is_tv2: bool = True) -> EndTransaction:
    return EndTransaction(
        transactional_id=ORDERS, identity=present, is_commit=is_commit, is_tv2=is_tv2
    )


STATUSES = tuple(TransactionStatus)
