"""The state of one transactional id, and the moves that it may make.

A transactional id names a producer over its restarts. It has one state:

    EMPTY            it has an identity and no transaction
    ONGOING          from the first partition that is registered
    PREPARE_COMMIT   from the decision until every partition has its marker below its high watermark
    PREPARE_ABORT
    COMPLETE_COMMIT  from there until the next transaction begins or another producer takes the id over
    COMPLETE_ABORT

What happens to it:

    init             a producer takes the id over, and gets an identity of its own
    add              a partition is registered, before the first batch of the transaction in that partition
    end              the producer commits or aborts
    abort            the time-out is over, another producer takes over, or an operator ends the transaction
    markers written  all partitions have their marker

A decision is the committed record of PREPARE_COMMIT or PREPARE_ABORT. It is never revised: from there the only move
is to the COMPLETE of the same outcome, which keeps nothing of the partitions.

The identity is (producer_id, producer_epoch). A decision bumps the epoch, except where a client of an older
transaction version ends its own transaction: such a client uses one epoch for all its transactions. The markers of
the decision have the new epoch, so that they fence the transaction's own late batches. `last_epoch` is the epoch
before the bump, by which the coordinator recognizes a producer that repeats a request because it missed the response.
It is absent after another producer took over, because then the producer before it is fenced.

If the epoch reaches `MARKER_EPOCH_MAX`, which no client may see, the decision takes a fresh producer id into
`next_id`. The markers still have the old id. The completion makes `next_id` the producer id, at epoch 0, and the old
one `previous_id`.

`last_outcome` is what the last decision decided, and the identity that its data has. A partition leader that finds an
open transaction without a marker learns from it how the transaction ended.

What cannot be, and is asserted: partitions in EMPTY or COMPLETE_*; `next_id` or the epoch of markers outside
PREPARE_*; any move that `MOVES` lacks, other than a change of the ledger alone. In the log, moves of one turn of the
event loop are merged into the last one, so a load may see others.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Final, NamedTuple, NewType

from msgspec import Struct
from msgspec.structs import replace

from odradek_broker.transactions.identity import (
    CLIENT_EPOCH_MAX,
    MARKER_EPOCH_MAX,
    NO_EPOCH,
    Match,
    ProducerIdentity,
)
from odradek_protocol.identity import (
    NO_PRODUCER_ID,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicName,
)

TransactionalId = NewType("TransactionalId", str)
NO_TIME: Final = -1
SLOT_SEPARATOR: Final = "\x1f"
"""Separates the id of the query from the number of the slot in the transactional id of a slot."""
NO_TIMEOUT_MS: Final = (1 << 31) - 1
"""The time-out of a producer that takes part in a two-phase commit (KIP-939). Its transactions never time out."""


class TransactionStatus(IntEnum):
    """The numbers are Kafka's. Its 6 (DEAD) and 7 (PREPARE_EPOCH_FENCE) are never written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def kafka_name(self) -> str:
        """Return the name that ListTransactions and DescribeTransactions show."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_decided(self) -> bool:
        """Whether the transaction is decided, so that its markers must be written."""
        return self in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)

    @property
    def is_commit(self) -> bool:
        return self in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)

    @property
    def is_between(self) -> bool:
        """Whether no transaction is open or waits for markers, so that the id may begin a transaction, get another
        producer, or be deleted.
        """
        return not self.is_decided and self is not TransactionStatus.ONGOING


_BETWEEN: Final = frozenset(
    {TransactionStatus.EMPTY, TransactionStatus.ONGOING, TransactionStatus.COMPLETE_ABORT, None}
)
MOVES: Final[dict[TransactionStatus | None, frozenset[TransactionStatus | None]]] = {
    None: frozenset({TransactionStatus.EMPTY}),
    TransactionStatus.EMPTY: _BETWEEN,
    TransactionStatus.ONGOING: frozenset(
        {
            TransactionStatus.ONGOING,
            TransactionStatus.PREPARE_COMMIT,
            TransactionStatus.PREPARE_ABORT,
        }
    ),
    TransactionStatus.PREPARE_COMMIT: frozenset({TransactionStatus.COMPLETE_COMMIT}),
    TransactionStatus.PREPARE_ABORT: frozenset({TransactionStatus.COMPLETE_ABORT}),
    TransactionStatus.COMPLETE_COMMIT: _BETWEEN,
    TransactionStatus.COMPLETE_ABORT: _BETWEEN,
}
"""The allowed changes of the status. None stands for an id that is unknown."""


class EndedBy(IntEnum):
    """What decided the last transaction. It determines the error for a producer whose request arrives too late."""

    CLIENT = 0
    TIMEOUT = 1
    FENCE = 2  # another producer took over the transactional id
    OPERATOR = 3


class TransactionPartition(NamedTuple):
    """A partition that a transaction writes to. The topic's name is for Kafka's tools; its id distinguishes topics
    of the same name.
    """

    topic_id: TopicId
    topic: TopicName
    partition: PartitionIndex


class Outcome(Struct, frozen=True, gc=False):
    """How a transaction ended, and the identity with which its records were written."""

    identity: ProducerIdentity
    is_commit: bool


class Staged(Struct, frozen=True, gc=False):
    """The step and the member for which a transactional id is used, if it is a slot of a staged write
    (staged_steps.py).
    """

    step: int
    member: str
    prepared_ms: int = NO_TIME  # time of the preparation, on the wall clock
    prepared_timeout_ms: int = 0  # 0: the time-out of the cluster


class Ledger(Struct, frozen=True, gc=False):
    """The last complete step of a query, if the transactional id is that of a query of staged writes
    (staged_steps.py).
    """

    last_step: int
    members: int
    is_final: bool = False


class Transaction(Struct, frozen=True, kw_only=True, gc=False):
    """The state of one transactional id. Times are those of the wall clock, in ms.

    The garbage collector does not track it: a shard has up to 100,000 of them, and the collector would block the event
    loop for 100 ms each time it visits them.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_epoch: ProducerEpoch = NO_EPOCH
    previous_id: ProducerId = NO_PRODUCER_ID
    next_id: ProducerId = NO_PRODUCER_ID
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TransactionPartition] = frozenset()
    update_ms: int
    start_ms: int = NO_TIME
    client_version: int = 0
    """The transaction.version of the last client: 2 if it uses one epoch for each transaction (KIP-890)."""
    ended_by: EndedBy = EndedBy.CLIENT
    last_outcome: Outcome | None = None
    staged: Staged | None = None
    ledger: Ledger | None = None

    @property
    def next_identity(self) -> ProducerIdentity:
        """Return the identity that the producer has now, or will have when the markers are written."""
        if self.next_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_id, ProducerEpoch(0))
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_bumped(self) -> bool:
        """Whether the markers of the decided transaction have a higher producer epoch than its batches."""
        assert self.status.is_decided, f"{self.status.name} has no markers"
        # The record was written by Kafka, which does not store the outcome.
        if self.last_outcome is None:
            return self.client_version >= 2
        return self.last_outcome.identity.epoch < self.producer_epoch

    @property
    def is_prepared(self) -> bool:
        """Whether this is a prepared member of a staged write, which waits for the decision of its step."""
        return self.staged is not None and self.staged.prepared_ms != NO_TIME

    @property
    def has_timeout(self) -> bool:
        return (
            self.status is TransactionStatus.ONGOING
            and self.timeout_ms != NO_TIMEOUT_MS
            and self.staged is None
        )

    @property
    def has_lease(self) -> bool:
        """Whether this is a member of a staged write that is not prepared yet, so that it must be renewed."""
        return self.staged is not None and not self.is_prepared

    @property
    def retry_identity(self) -> ProducerIdentity | None:
        """Return the identity before the last bump, if its producer may still repeat the request that bumped it.

        At epoch 0 the bump took a fresh producer id, so the epoch is that of the previous one.
        """
        if self.last_epoch == NO_EPOCH:
            return None
        holder = self.producer_id if self.producer_epoch > 0 else self.previous_id
        return ProducerIdentity(holder, self.last_epoch)

    def match(self, identity: ProducerIdentity) -> Match:
        """Compare the identity of a request with this state."""
        if identity.producer_id == NO_PRODUCER_ID:
            return Match.FOREIGN
        if identity == self.next_identity:
            return Match.CURRENT
        if identity == self.retry_identity:
            return Match.RETRY
        ids = {self.producer_id, self.previous_id, self.next_id} - {NO_PRODUCER_ID}
        return Match.STALE if identity.producer_id in ids else Match.FOREIGN

    @property
    def needs_fresh_id(self) -> bool:
        """Whether the next bump of the epoch needs a new producer id."""
        return self.producer_epoch >= CLIENT_EPOCH_MAX

    def initialized(
        self, fresh_id: ProducerId | None, *, timeout_ms: int, is_same_producer: bool, wall_ms: int
    ) -> Transaction:
        """Return the state after a producer took over the transactional id. `fresh_id` is given if `needs_fresh_id`."""
        bumped = self._bumped(fresh_id, keeps_last=is_same_producer)
        return replace(
            bumped,
            timeout_ms=timeout_ms,
            status=TransactionStatus.EMPTY,
            update_ms=wall_ms,
            start_ms=NO_TIME,
        )

    def aborted_without_partitions(
        self,
        fresh_id: ProducerId | None,
        *,
        wall_ms: int,
        ended_by: EndedBy = EndedBy.CLIENT,
    ) -> Transaction:
        """Return the state after the abort of a transaction without partitions, which needs no markers."""
        return replace(
            self._bumped(fresh_id, keeps_last=True),
            status=TransactionStatus.COMPLETE_ABORT,
            update_ms=wall_ms,
            start_ms=NO_TIME,
            client_version=2,
            ended_by=ended_by,
            staged=None,
        )

    def _bumped(self, fresh_id: ProducerId | None, *, keeps_last: bool) -> Transaction:
        assert self.status.is_between, f"a new identity in {self.status.name}"
        assert fresh_id is not None or not self.needs_fresh_id, f"no id at {self.producer_epoch}"
        last_epoch = self.producer_epoch if keeps_last else NO_EPOCH
        if fresh_id is None:
            return replace(
                self, producer_epoch=ProducerEpoch(self.producer_epoch + 1), last_epoch=last_epoch
            )
        return replace(
            self,
            producer_id=fresh_id,
            producer_epoch=ProducerEpoch(0),
            previous_id=self.producer_id,
            last_epoch=last_epoch,
        )

    def with_partitions(
        self, partitions: Collection[TransactionPartition], *, is_tv2: bool, wall_ms: int
    ) -> Transaction:
        """Return the state with these partitions added to the open transaction, or to a new one."""
        is_open = self.status is TransactionStatus.ONGOING
        assert is_open or self.status.is_between, f"partitions in {self.status.name}"
        return replace(
            self,
            status=TransactionStatus.ONGOING,
            partitions=self.partitions.union(partitions),
            update_ms=wall_ms,
            start_ms=self.start_ms if is_open else wall_ms,
            client_version=2 if is_tv2 else min(self.client_version, 1),
        )

    def decided(
        self,
        fresh_id: ProducerId | None,
        *,
        is_commit: bool,
        ended_by: EndedBy,
        is_bumped: bool,
        wall_ms: int,
    ) -> Transaction:
        """Return the state after the decision. `fresh_id` is given if the epoch is bumped and `needs_fresh_id`."""
        assert self.status is TransactionStatus.ONGOING, f"a decision in {self.status.name}"
        takes_id = is_bumped and self.needs_fresh_id
        assert takes_id is (fresh_id is not None), f"{fresh_id} at {self.producer_epoch}"
        decided = replace(
            self,
            status=TransactionStatus.PREPARE_COMMIT
            if is_commit
            else TransactionStatus.PREPARE_ABORT,
            update_ms=wall_ms,
            ended_by=ended_by,
            staged=None,
            last_outcome=Outcome(
                ProducerIdentity(self.producer_id, self.producer_epoch), is_commit
            ),
        )
        if not is_bumped:
            return replace(decided, client_version=min(self.client_version, 1))
        return replace(
            decided,
            producer_epoch=ProducerEpoch(self.producer_epoch + 1),
            last_epoch=NO_EPOCH if ended_by is EndedBy.FENCE else self.producer_epoch,
            client_version=2 if ended_by is EndedBy.CLIENT else self.client_version,
            next_id=NO_PRODUCER_ID if fresh_id is None else fresh_id,
        )

    def completed(self, *, wall_ms: int) -> Transaction:
        """Return the state when every partition has its marker."""
        assert self.status.is_decided, f"a completion in {self.status.name}"
        complete = replace(
            self,
            status=TransactionStatus.COMPLETE_COMMIT
            if self.status.is_commit
            else TransactionStatus.COMPLETE_ABORT,
            partitions=frozenset(),
            update_ms=wall_ms,
            start_ms=NO_TIME,
        )
        if self.next_id == NO_PRODUCER_ID:
            return complete
        return replace(
            complete,
            producer_id=self.next_id,
            producer_epoch=ProducerEpoch(0),
            previous_id=self.producer_id,
            next_id=NO_PRODUCER_ID,
        )


class TransactionRecord(Struct, frozen=True, gc=False):
    """A record of `__transaction_state`. A state of None deletes the transactional id."""

    transactional_id: TransactionalId
    state: Transaction | None


def created(producer_id: ProducerId, *, timeout_ms: int, wall_ms: int) -> Transaction:
    """Return the state of a transactional id that was unknown."""
    return Transaction(
        producer_id=producer_id,
        producer_epoch=ProducerEpoch(0),
        timeout_ms=timeout_ms,
        update_ms=wall_ms,
    )


def created_ledger(*, wall_ms: int) -> Transaction:
    """Return the state of a query's transactional id that has only the ledger of its steps, and no producer."""
    return Transaction(
        producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH, timeout_ms=0, update_ms=wall_ms
    )


def assert_legal(state: Transaction) -> None:
    """Assert that the values of the fields are possible together."""
    status, epoch = state.status, state.producer_epoch
    assert not state.partitions or not status.is_between, f"partitions in {status.name}: {state}"
    assert state.next_id == NO_PRODUCER_ID or status.is_decided, f"next id in {status.name}"
    assert epoch < MARKER_EPOCH_MAX or status.is_decided, f"epoch {epoch} in {status.name}"
    assert (epoch == MARKER_EPOCH_MAX) == (state.next_id != NO_PRODUCER_ID), (
        f"epoch {epoch} with next id {state.next_id}"
    )
    assert epoch <= 0 or state.last_epoch in (NO_EPOCH, epoch - 1), (
        f"last epoch {state.last_epoch} at {epoch}"
    )
    assert epoch > 0 or state.last_epoch == NO_EPOCH or state.previous_id != NO_PRODUCER_ID, (
        f"last epoch {state.last_epoch} of no producer id"
    )
