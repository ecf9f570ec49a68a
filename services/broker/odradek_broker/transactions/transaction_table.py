"""The transactional ids of one shard: their states, the timeouts of open transactions, and the expiry of ids.

Only `replay` changes the states. It is called by handlers, and during a load. Deadlines are not written to the log.
They are monotonic times, so that a jump of the wall clock does not abort a transaction.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from odradek_broker.settled_clock import SettledClock
from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.messages import Resolution
from odradek_broker.transactions.settings import TransactionSettings
from odradek_broker.transactions.transaction import (
    Transaction,
    TransactionalId,
    TransactionPartition,
    TransactionRecord,
    TransactionStatus,
    assert_legal,
)
from odradek_protocol.identity import (
    NO_PRODUCER_ID,
    SLOT_SEPARATOR,
    PartitionIndex,
    ProducerId,
    TopicId,
)

# How long the ledger and the slots of a batch write (a query with a single step) are kept after the step is complete.
# Spark does not repeat a batch write after this time.
_FINAL_LEDGER_MS: Final = 3_600_000
_RECORD_BYTES: Final = 200  # the size limit of a record without its id and its partitions
_PARTITION_BYTES: Final = 32  # the size limit of a partition in a record, without its topic's name


@dataclass(slots=True, kw_only=True)
class TransactionTable:
    """The transactions of one shard, that is, of one partition of `__transaction_state`, by transactional id."""

    settings: TransactionSettings
    clock: SettledClock = field(default_factory=SettledClock)
    _states: dict[TransactionalId, Transaction] = field(default_factory=dict)
    _by_producer: dict[ProducerId, TransactionalId] = field(default_factory=dict)
    _deadline_ms: dict[TransactionalId, int] = field(default_factory=dict)
    _deadlines: list[tuple[int, TransactionalId]] = field(default_factory=list)
    """A heap of deadlines. Only those that are also in `_deadline_ms` are valid; the others were replaced, or belong to
    transactions that have ended.
    """
    _expiry_due_ms: int | None = None
    _unexamined: list[TransactionalId] = field(default_factory=list)
    _open: dict[TransactionalId, int] = field(default_factory=dict)
    """The wall-clock time at which each open transaction began."""
    _decided: dict[TransactionalId, None] = field(default_factory=dict)
    _slots: dict[str, dict[TransactionalId, None]] = field(default_factory=dict)
    """The slots (transactional ids) of each query of staged writes (staged_steps.py)."""
    _slot_bytes: dict[str, int] = field(default_factory=dict)
    """An upper bound for the size of the records of each query's slots."""
    _member_counts: dict[tuple[str, int], int] = field(default_factory=dict)
    """The number of undecided members of each query and step of staged writes."""

    def __len__(self) -> int:
        return len(self._states)

    def get(self, transactional_id: TransactionalId) -> Transaction | None:
        return self._states.get(transactional_id)

    def items(self) -> Iterator[tuple[TransactionalId, Transaction]]:
        """Iterate over a snapshot of all ids and their states."""
        return iter(list(self._states.items()))

    def open_since_ms(self) -> Collection[int]:
        """Return the wall-clock times at which the open transactions began."""
        return self._open.values()

    def slots_of(self, query: str) -> list[tuple[TransactionalId, Transaction]]:
        """Return the slots of a query of staged writes, with their states."""
        return [(name, self._states[name]) for name in self._slots.get(query, ())]

    def slots(self) -> Iterator[tuple[TransactionalId, Transaction]]:
        """Return the slots of all queries of staged writes, with their states."""
        return ((name, self._states[name]) for names in self._slots.values() for name in names)

    def slot_bytes(self, query: str) -> int:
        """Return an upper bound for the size of a batch with one record of each slot of a query."""
        return self._slot_bytes.get(query, 0)

    def has_members(self, query: str, step: int) -> bool:
        """Return whether a transaction of this step of staged writes is neither committed nor aborted yet."""
        return (query, step) in self._member_counts

    def _count_member(self, query: str, state: Transaction | None, change: int) -> None:
        if state is None or state.staged is None:
            return
        key = query, state.staged.step
        count = self._member_counts.get(key, 0) + change
        if count:
            self._member_counts[key] = count
        else:
            del self._member_counts[key]

    def decided(self) -> Iterator[tuple[TransactionalId, Transaction]]:
        """Iterate over the ids whose transactions are decided but not complete, with their states."""
        return ((name, self._states[name]) for name in self._decided)

    def replay(self, record: TransactionRecord) -> None:
        """Apply one record."""
        transactional_id, state = record.transactional_id, record.state
        before = self._states.get(transactional_id)
        if before is not None:
            for producer_id in (before.producer_id, before.previous_id):
                self._by_producer.pop(producer_id, None)
        query, separator, _ = transactional_id.partition(SLOT_SEPARATOR)
        if separator:
            self._count_member(query, state, 1)
            self._count_member(query, before, -1)
            change_bytes = _state_bytes(transactional_id, state)
            change_bytes -= _state_bytes(transactional_id, before)
            self._slot_bytes[query] = self._slot_bytes.get(query, 0) + change_bytes
        if state is not None and state.status is TransactionStatus.ONGOING:
            self._open[transactional_id] = state.start_ms
        else:
            self._open.pop(transactional_id, None)
        if state is not None and state.status.is_decided:
            self._decided[transactional_id] = None
        else:
            self._decided.pop(transactional_id, None)
        if state is None:
            self._states.pop(transactional_id, None)
            self._deadline_ms.pop(transactional_id, None)
            slots = self._slots.get(query, {})
            slots.pop(transactional_id, None)
            if separator and not slots:
                self._slots.pop(query, None)
                self._slot_bytes.pop(query, None)
            return
        if separator:
            self._slots.setdefault(query, {})[transactional_id] = None
        assert_legal(state)
        self._states[transactional_id] = state
        for producer_id in (state.producer_id, state.previous_id):
            if producer_id != NO_PRODUCER_ID:
                self._by_producer[producer_id] = transactional_id
        if not state.has_timeout and not state.has_lease:
            self._deadline_ms.pop(transactional_id, None)

    def start_timeout(self, transactional_id: TransactionalId, deadline_ms: int) -> None:
        """Set the monotonic time at which the open transaction of this id times out, or at which its lease expires."""
        self._deadline_ms[transactional_id] = deadline_ms
        heapq.heappush(self._deadlines, (deadline_ms, transactional_id))
        # The heap is rebuilt when most of its deadlines are no longer valid.
        if len(self._deadlines) > 2 * len(self._deadline_ms) + 1_000:
            self._deadlines = [(due_ms, name) for name, due_ms in self._deadline_ms.items()]
            heapq.heapify(self._deadlines)

    def loaded(self, *, now_ms: int, wall_ms: int) -> None:
        """Start the timeouts of all open transactions, and the leases of unprepared members of staged writes. This is
        called after a load.

        Only this method and `expired` compare the wall clock with times of the log. If the wall clock has jumped, the
        remaining time may be as short as `load_grace_ms`, but is never longer than the transaction's timeout or
        `load_grace_ms`, whichever is longer.
        """
        for transactional_id in self._open:
            state = self._states[transactional_id]
            if state.has_timeout:
                left_ms = min(max(0, state.start_ms + state.timeout_ms - wall_ms), state.timeout_ms)
                left_ms = max(left_ms, self.settings.load_grace_ms)
                self.start_timeout(transactional_id, now_ms + left_ms)
        for transactional_id, state in self.slots():
            if state.has_lease:
                # Renewals are in memory only, so each member gets a full lease after a load.
                self.start_timeout(transactional_id, now_ms + self.settings.staged_lease_ms)

    def timed_out(self, now_ms: int) -> TransactionalId | None:
        """Return the id of a transaction that has timed out, or None. The same id is returned until its transaction has
        ended or has got a later deadline.
        """
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            deadline_ms, transactional_id = self._deadlines[0]
            if self._deadline_ms.get(transactional_id) == deadline_ms:
                return transactional_id
            heapq.heappop(self._deadlines)
        return None

    def expired(self, *, now_ms: int, wall_ms: int) -> list[TransactionalId]:
        """Return ids that have expired: most ids after `id_expiration_ms` without use, an id with a ledger after
        `ledger_expiration_ms` if that is longer, and the ids of a complete batch write after `_FINAL_LEDGER_MS`.

        Each id is checked once in every `remove_expired_interval_ms`; each call checks a bounded number of ids.
        """
        settings = self.settings
        wall_ms = self.clock.read(now_ms=now_ms, wall_ms=wall_ms)
        if self._expiry_due_ms is None:
            self._expiry_due_ms = now_ms + settings.remove_expired_interval_ms
        if now_ms >= self._expiry_due_ms:
            self._expiry_due_ms = now_ms + settings.remove_expired_interval_ms
            self._unexamined = list(self._states)
        examined = self._unexamined[-settings.steps_of_tick_max :]
        del self._unexamined[-settings.steps_of_tick_max :]
        return [name for name in examined if self._has_expired(name, wall_ms)]

    def _has_expired(self, transactional_id: TransactionalId, wall_ms: int) -> bool:
        state = self._states.get(transactional_id)
        if state is None or not state.status.is_between or state.staged is not None:
            return False
        expiration_ms = self.settings.id_expiration_ms
        query, separator, _ = transactional_id.partition(SLOT_SEPARATOR)
        of_query = self._states.get(TransactionalId(query))
        if of_query is not None and of_query.ledger is not None and of_query.ledger.is_final:
            # A final ledger belongs to a batch write, whose slots are not used again. The ledger is deleted after the
            # slots, because without the ledger the slots would not expire early.
            if not separator and query in self._slots:
                return False
            expiration_ms = _FINAL_LEDGER_MS
        elif state.ledger is not None:
            expiration_ms = max(expiration_ms, self.settings.ledger_expiration_ms)
        return wall_ms - state.update_ms >= expiration_ms

    def resolve(
        self, identity: ProducerIdentity, topic_id: TopicId, partition: PartitionIndex
    ) -> Resolution:
        """Return the resolution of the transaction with this identity, which is open in the given partition."""
        transactional_id = self._by_producer.get(identity.producer_id)
        if transactional_id is None:
            return Resolution.UNKNOWN
        state = self._states[transactional_id]
        outcome = state.last_outcome
        if state.status.is_decided:
            # Markers are pending. LIVE is also returned for partitions that have already acknowledged their marker.
            if outcome is None or outcome.identity == identity:
                return Resolution.LIVE
        elif state.status is TransactionStatus.ONGOING or state.is_prepared:
            is_registered = any(
                (registered.topic_id, registered.partition) == (topic_id, partition)
                for registered in state.partitions
            )
            if identity == state.next_identity and is_registered:
                return Resolution.LIVE
        if outcome is not None and outcome.identity == identity:
            return Resolution.COMMITTED if outcome.is_commit else Resolution.ABORTED
        return Resolution.UNKNOWN


def _state_bytes(transactional_id: TransactionalId, state: Transaction | None) -> int:
    if state is None:
        return 0
    return record_bytes(transactional_id) + partitions_bytes(state.partitions)


def record_bytes(transactional_id: str) -> int:
    """Return an upper bound for the size of a record without partitions."""
    return _RECORD_BYTES + len(transactional_id.encode())


def partitions_bytes(partitions: Iterable[TransactionPartition]) -> int:
    """Return an upper bound for the size of partitions in a record."""
    return sum(_PARTITION_BYTES + len(partition.topic.encode()) for partition in partitions)
