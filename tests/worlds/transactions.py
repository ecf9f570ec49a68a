"""A transaction coordinator for tests: it has one transactional id, and commits every change at
once.

It follows the coordinator's rules that TransactionGate relies on: a producer id and epoch have one
transaction at a time, a decision is never changed, and the next transaction begins when every
registered partition has confirmed its marker. After `fail_over` this object acts as a new coordinator, while messages
of the old coordinator are still in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from odradek_broker.partition.events import Marker, RegistrationMode, TransactionOutcome
from odradek_broker.replication.host_ports import Registration, RegistrationResponse
from odradek_protocol.identity import LeaderEpoch, PartitionIndex, ProducerEpoch, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode

PRODUCER = ProducerId(7)
TRANSACTIONS = PartitionIndex(3)  # the partition of `__transaction_state`
RETRIED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


@dataclass(slots=True)
class Transaction:
    """One transaction of the transactional id."""

    number: int
    epoch: int  # producer epoch of its records
    registered: set[Hashable] = field(default_factory=set)
    outcome: bool | None = None  # is_commit, once it is decided
    marker_epoch: int = -1
    is_complete: bool = False


class Coordinator:
    """The state of one transactional id.

    `responds_before_complete` is a planted bug that a test can switch on.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.coordinator_epoch = 1
        self.transactions: list[Transaction] = []
        self.unmarked: set[Hashable] = set()
        self.refused_markers: list[ErrorCode] = []
        self.responds_before_complete = False

    @property
    def now(self) -> Transaction | None:
        """Return the transaction that is open or not complete yet; None if there is none."""
        last = self.transactions[-1] if self.transactions else None
        return None if last is None or last.is_complete else last

    @property
    def last_outcome(self) -> TransactionOutcome | None:
        """Return how the last complete transaction ended."""
        for transaction in reversed(self.transactions):
            if transaction.is_complete:
                assert transaction.outcome is not None
                return TransactionOutcome(
                    PRODUCER, ProducerEpoch(transaction.epoch), transaction.outcome
                )
        return None

    def add(self, epoch: int, partition: Hashable) -> ErrorCode:
        """Add a partition to the open transaction, or begin a transaction with the partition."""
        if epoch != self.epoch:
            return ErrorCode.PRODUCER_FENCED
        now = self.now
        if now is not None and now.outcome is not None:
            if not self.responds_before_complete:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            now = None
        if now is None:
            now = Transaction(len(self.transactions), epoch)
            self.transactions.append(now)
        now.registered.add(partition)
        return ErrorCode.NONE

    def verify(self, epoch: int, partition: Hashable) -> ErrorCode:
        """Check that a partition belongs to the open transaction."""
        if epoch != self.epoch:
            return ErrorCode.PRODUCER_FENCED
        now = self.now
        if now is None or partition not in now.registered:
            return ErrorCode.TRANSACTION_ABORTABLE
        return ErrorCode.NONE if now.outcome is None else ErrorCode.CONCURRENT_TRANSACTIONS

    def register(self, mode: RegistrationMode, epoch: int, partition: Hashable) -> ErrorCode:
        """Handle the registration that a partition leader sends."""
        if mode is RegistrationMode.ADD:
            return self.add(epoch, partition)
        return self.verify(epoch, partition)

    def end(self, *, is_commit: bool, is_bumped: bool) -> bool:
        """Decide the outcome; return whether there was a transaction to decide."""
        now = self.now
        if now is None or now.outcome is not None:
            return False
        now.outcome = is_commit
        self.epoch += is_bumped
        now.marker_epoch = self.epoch
        self.unmarked = set(now.registered)
        return True

    def fence(self) -> None:
        """Let another producer process take over the transactional id."""
        self.end(is_commit=False, is_bumped=True)
        self.epoch += 1

    def fail_over(self) -> None:
        """Let another broker be the coordinator from now on."""
        self.coordinator_epoch += 1

    def marker(self) -> Marker | None:
        """Return the marker that each partition in `unmarked` has to append."""
        deciding = self.deciding()
        if deciding is None:
            return None
        assert deciding.outcome is not None
        return Marker(
            PRODUCER,
            ProducerEpoch(deciding.marker_epoch),
            deciding.outcome,
            TRANSACTIONS,
            LeaderEpoch(self.coordinator_epoch),
            is_bumped=deciding.marker_epoch > deciding.epoch,
        )

    def deciding(self) -> Transaction | None:
        """Return the transaction whose markers are due."""
        for transaction in self.transactions:
            if transaction.outcome is not None and not transaction.is_complete:
                return transaction
        return None

    def marked(self, number: int, partition: Hashable, code: ErrorCode) -> None:
        """Handle a partition leader's response to the marker of the transaction with this number."""
        deciding = self.deciding()
        if deciding is None or deciding.number != number or code in RETRIED:
            return
        if code is not ErrorCode.NONE:
            self.refused_markers.append(code)
            return
        self.unmarked.discard(partition)
        deciding.is_complete = not self.unmarked


class CoordinatorRegistrar:
    """Passes registrations of partition leaders to the coordinator in the same process, each in a
    later iteration of the event loop.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.asked: list[Registration] = []
        self.is_reachable = True

    def register(
        self, registration: Registration, on_response: Callable[[RegistrationResponse], None]
    ) -> None:
        self.asked.append(registration)
        asyncio.get_running_loop().call_soon(lambda: on_response(self._response(registration)))

    def _response(self, registration: Registration) -> RegistrationResponse:
        if not self.is_reachable:
            return RegistrationResponse(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, PartitionIndex(-1), LeaderEpoch(-1)
            )
        coordinator = self.coordinator
        code = coordinator.register(
            registration.mode, registration.producer_epoch, registration.partition
        )
        return RegistrationResponse(
            code,
            TRANSACTIONS,
            LeaderEpoch(coordinator.coordinator_epoch),
            coordinator.last_outcome,
        )
