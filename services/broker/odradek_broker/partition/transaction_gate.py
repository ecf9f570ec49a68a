"""The gate before the first batch of a transaction (KIP-890): the leader appends the batch only if the coordinator
confirms that the transaction is open.

    batch --> its producer has an open transaction of the same epoch, or it is a duplicate --> appended at once
       |
       +----> waits --> RegisterTransaction --> TransactionVerified, confirmed --> appended, with all batches behind it
                           ^                        +--> a final error --> refused
                           +--- a marker came, or no coordinator could decide --+--> deadline --> NOT_ENOUGH_REPLICAS

Without the gate, a batch that arrives after the marker of its transaction (for example on an old connection) would open
a transaction that nobody ends, and read_committed consumers would stop before it for ever.

In a partition, each producer has at most one *registration* (a RegisterTransaction without its response) in progress.
Further batches of the producer wait behind the first one, at most `HELD_MAX` batches in all; other producers are not
affected. A registration has a number, its *guard*. A marker of the producer voids the registration, and so does the end
of the leader epoch: a confirmation says that the transaction was open when the coordinator decided, and the marker says
that the transaction has ended since. Waiting batches of the ended transaction are then refused, and those of the next
transaction are registered again.

A confirmation by a coordinator that is known to be deposed counts as no response. A confirmation may also show that a
marker is lost: if a transaction of an older epoch of the same producer is still open in the log, its coordinator ended
it long ago, and an unclean election or a loss of power removed the marker. The leader then first appends a marker for
this *orphan*, because the new batch would otherwise join the old transaction.

An error that says nothing about the transaction never reaches a client: the batch keeps waiting, and is registered
again at the next tick. At its deadline the batch, and all batches that wait behind it, get NOT_ENOUGH_REPLICAS, after
which every client sends the batch again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from odradek_broker.partition.effects import (
    Effect,
    OrphanEnded,
    RegisterTransaction,
    RespondToProduce,
)
from odradek_broker.partition.events import (
    ProducerBatch,
    RegistrationMode,
    TransactionalProduceRequested,
    TransactionOutcome,
    TransactionVerified,
)
from odradek_broker.partition.marker_writes import CoordinatorEpochs
from odradek_broker.partition.produces import ProducerSequences
from odradek_protocol.identity import NO_OFFSET, LeaderEpoch, Offset, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode

HELD_MAX: Final = 5
_ALL: Final = -1
_UNDER_WAY_NONE: Final = 0
_FINAL: Final[dict[ErrorCode, ErrorCode]] = {
    # Producers recognize from this code that they are fenced.
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The coordinator's errors that end the wait of a batch, each with the error that the client gets."""


@dataclass(slots=True)
class _Held:
    event: TransactionalProduceRequested
    batch: ProducerBatch
    until_ms: int


@dataclass(slots=True)
class _Waiting:
    """The batches of one producer that wait for the transaction coordinator, oldest first.

    `guard` is the number of the registration in progress, which is for the transaction of the first batch; 0 if none is
    in progress.
    """

    held: deque[_Held] = field(default_factory=deque)
    guard: int = _UNDER_WAY_NONE

    @property
    def first(self) -> _Held:
        return self.held[0]

    def take_first_transaction(self) -> list[_Held]:
        """Remove and return the batches that belong to the same transaction as the first one."""
        first = self.first
        taken: list[_Held] = []
        while self.held and (
            self.first.batch.producer_epoch == first.batch.producer_epoch
            and self.first.event.transactional_id == first.event.transactional_id
        ):
            taken.append(self.held.popleft())
        return taken


class TransactionGate:
    """The batches that wait for transaction coordinators in one leader epoch.

    `ready` has the items that may be appended now, in order: batches, and orphaned transactions that must be ended
    before them. The leader empties `ready` before the next event.
    """

    __slots__ = (
        "_by_guard",
        "_coordinators",
        "_guards",
        "_leader_epoch",
        "_producers",
        "_timeout_ms",
        "_waiting",
        "ready",
    )

    def __init__(
        self,
        leader_epoch: LeaderEpoch,
        *,
        guards: Iterator[int],
        producers: ProducerSequences,
        coordinators: CoordinatorEpochs,
        timeout_ms: int,
    ) -> None:
        """`guards` yields each number only once, so that a late response is never mistaken for the response to a later
        registration.
        """
        self._leader_epoch = leader_epoch
        self._guards = guards
        self._producers = producers
        self._coordinators = coordinators
        self._timeout_ms = timeout_ms
        self._waiting: dict[ProducerId, _Waiting] = {}
        self._by_guard: dict[int, ProducerId] = {}
        self.ready: list[TransactionalProduceRequested | OrphanEnded] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def request(self, event: TransactionalProduceRequested, now_ms: int) -> list[Effect] | None:
        """Let the batch wait until its coordinator has responded, or refuse it. Return None if it can be appended at
        once.
        """
        if event.produce.acks != _ALL:
            # If this leader failed before the batch was replicated, a committed transaction could lose the batch.
            return [self._respond(event, ErrorCode.INVALID_REQUIRED_ACKS)]
        batch = event.produce.producer
        assert batch is not None, event
        waiting = self._waiting.get(batch.producer_id)
        if waiting is None:
            if not self._must_register(batch):
                return None
            waiting = self._waiting[batch.producer_id] = _Waiting()
        elif len(waiting.held) >= HELD_MAX:
            return [self._respond(event, ErrorCode.NOT_ENOUGH_REPLICAS)]
        until_ms = min(event.produce.deadline_ms, now_ms + self._timeout_ms)
        waiting.held.append(_Held(event, batch, until_ms))
        return [self._register(waiting)] if len(waiting.held) == 1 else []

    def _must_register(self, batch: ProducerBatch) -> bool:
        """Return whether the batch would begin a transaction in this partition. A duplicate, and a batch of an old
        epoch, would not.
        """
        entry = self._producers.entry(batch.producer_id)
        if entry is None:
            return True
        if entry.transaction_first_offset >= 0 and entry.epoch == batch.producer_epoch:
            return False
        verdict = self._producers.check(
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.last_sequence,
            is_transactional=True,
        )
        return isinstance(verdict, ErrorCode) and verdict is not ErrorCode.INVALID_PRODUCER_EPOCH

    def refusal(self, event: TransactionalProduceRequested) -> RespondToProduce | None:
        """Return the refusal of a confirmed batch if the log has no state of its producer and the batch does not begin
        with sequence number 0. None: the batch is not refused. The check is only for transaction.version 2 (mode ADD).
        """
        batch = event.produce.producer
        assert batch is not None, event
        is_unknown = self._producers.entry(batch.producer_id) is None
        if event.mode is RegistrationMode.ADD and is_unknown and batch.base_sequence != 0:
            return self._respond(event, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return None

    def verified(self, event: TransactionVerified) -> list[Effect]:
        """Apply the coordinator's response. Batches that may now be appended are added to `ready`."""
        is_current = event.coordinator_epoch < 0 or self._coordinators.heard(
            event.coordinator_partition, event.coordinator_epoch
        )
        producer_id = self._by_guard.pop(event.guard, None)
        if producer_id is None:
            return []
        waiting = self._waiting[producer_id]
        waiting.guard = _UNDER_WAY_NONE
        code = event.error_code
        final = _FINAL.get(code)
        if (
            code is ErrorCode.CONCURRENT_TRANSACTIONS
            and waiting.first.event.mode is RegistrationMode.ADD
        ):
            final = code
        if not is_current or (code is not ErrorCode.NONE and final is None):
            return []
        taken = waiting.take_first_transaction()
        effects: list[Effect] = []
        if final is not None:
            effects.extend(self._respond(held.event, final) for held in taken)
        else:
            orphan = self._orphan(taken[0].batch, event.last_outcome)
            if orphan is not None:
                self.ready.append(orphan)
            self.ready.extend(held.event for held in taken)
        effects.extend(self._next(producer_id, waiting))
        return effects

    def _orphan(self, batch: ProducerBatch, last: TransactionOutcome | None) -> OrphanEnded | None:
        entry = self._producers.entry(batch.producer_id)
        if (
            entry is None
            or entry.transaction_first_offset < 0
            or entry.epoch >= batch.producer_epoch
        ):
            return None
        data = (batch.producer_id, entry.epoch)
        return OrphanEnded(
            producer_id=batch.producer_id,
            producer_epoch=entry.epoch,
            first_offset=Offset(entry.transaction_first_offset),
            is_commit=last is not None and last[:2] == data and last.is_commit,
        )

    def is_registering(self, producer_id: ProducerId) -> bool:
        """Return whether a batch of this producer waits for its coordinator."""
        return producer_id in self._waiting

    def ended(self, producer_id: ProducerId, last_epoch: int) -> list[Effect]:
        """Void the registration of a producer whose marker is being appended, and fail its waiting batches up to the
        producer epoch `last_epoch`.

        Those batches belong to the transaction that the marker ends, because the next transaction begins only when this
        marker is committed. These batches must not be registered again: clients of the older protocol keep their
        producer epoch from one transaction to the next, so the coordinator could take these batches for batches of the
        next transaction.
        """
        waiting = self._waiting.get(producer_id)
        if waiting is None:
            return []
        ended = [held for held in waiting.held if held.batch.producer_epoch <= last_epoch]
        waiting.held = deque(held for held in waiting.held if held not in ended)
        return [
            *(self._respond(held.event, ErrorCode.TRANSACTION_ABORTABLE) for held in ended),
            *self._next(producer_id, waiting),
        ]

    def on_tick(self, now_ms: int) -> list[Effect]:
        """Refuse batches that have waited until their deadline, and register again those to which the coordinator gave
        no usable response.
        """
        effects: list[Effect] = []
        for producer_id, waiting in list(self._waiting.items()):
            kept = 0
            for held in waiting.held:
                if held.until_ms <= now_ms:
                    break
                kept += 1
            # Later batches of a producer cannot be appended without the earlier ones.
            late = [waiting.held.pop() for _ in range(len(waiting.held) - kept)]
            for held in reversed(late):
                effects.append(self._respond(held.event, ErrorCode.NOT_ENOUGH_REPLICAS))
            if not waiting.held or waiting.guard == _UNDER_WAY_NONE:
                effects.extend(self._next(producer_id, waiting))
        return effects

    def fail_ready(self, error_code: ErrorCode) -> list[Effect]:
        """Fail the batches in `ready`, and do not end the orphaned transactions in it."""
        items, self.ready = self.ready, []
        return [
            self._respond(item, error_code)
            for item in items
            if isinstance(item, TransactionalProduceRequested)
        ]

    def resign(self, error_code: ErrorCode) -> list[Effect]:
        """Fail all waiting batches, because the leader epoch is over. None of them was written."""
        held = [held for waiting in self._waiting.values() for held in waiting.held]
        self._waiting.clear()
        self._by_guard.clear()
        return [
            *self.fail_ready(error_code),
            *(self._respond(waiting.event, error_code) for waiting in held),
        ]

    def _next(self, producer_id: ProducerId, waiting: _Waiting) -> list[Effect]:
        """Register the first of the producer's remaining batches with the coordinator, or remove the producer if none
        remains.
        """
        if waiting.held:
            return [self._register(waiting)]
        self._by_guard.pop(waiting.guard, None)
        del self._waiting[producer_id]
        return []

    def _register(self, waiting: _Waiting) -> RegisterTransaction:
        first = waiting.first
        self._by_guard.pop(waiting.guard, None)
        waiting.guard = next(self._guards)
        self._by_guard[waiting.guard] = first.batch.producer_id
        return RegisterTransaction(
            guard=waiting.guard,
            transactional_id=first.event.transactional_id,
            producer_id=first.batch.producer_id,
            producer_epoch=first.batch.producer_epoch,
            mode=first.event.mode,
            deadline_ms=first.until_ms,
        )

    def _respond(
        self, event: TransactionalProduceRequested, error_code: ErrorCode
    ) -> RespondToProduce:
        return RespondToProduce(
            request_id=event.produce.request_id,
            error_code=error_code,
            base_offset=NO_OFFSET,
            leader_epoch=self._leader_epoch,
        )
