"""The state machine of one transactional id.

A transactional id identifies a producer across its restarts. Its status is one of these:

    EMPTY            The id has a producer identity and no transaction.
    ONGOING          At least one partition has been added to the transaction, which is not decided.
    PREPARE_COMMIT   The commit is decided, and the marker of at least one partition is pending.
    PREPARE_ABORT    The abort is decided, and the marker of at least one partition is pending.
    COMPLETE_COMMIT  All markers of the commit are committed, and no other transaction has begun.
    COMPLETE_ABORT   All markers of the abort are committed, and no other transaction has begun.

These events change the status:

    init             A producer starts to use the id and gets a new identity, which fences earlier producers.
    add              A partition is added, before the first batch of the transaction is written to that partition.
    end              The producer commits or aborts the transaction.
    abort            The transaction times out, is fenced by another producer's init, or is aborted by an operator.
    markers written  All partitions have acknowledged their marker.

A transaction is decided when the record of PREPARE_COMMIT or PREPARE_ABORT is committed. A decision is never revised.
The only next status is the COMPLETE status of the same outcome, which has no partitions.

The identity is (producer_id, producer_epoch). A decision bumps the epoch, except if a client of transaction version 0
or 1 ends its own transaction, because such a client uses the same epoch for all its transactions. The markers have the
bumped epoch, so that they fence late batches of the transaction. `last_epoch` is the epoch before the bump. By this
epoch the coordinator recognizes a producer that repeats its request because it missed the response. After the init of
another producer, `last_epoch` is NO_EPOCH, because the earlier producer is fenced.

If the bumped epoch is `MARKER_EPOCH_MAX`, which clients must not get, the decision stores a new producer id in
`next_id`, and the markers have the old id. When the transaction is complete, `next_id` becomes the producer id with
epoch 0, and the old id becomes `previous_id`.

`last_outcome` is the outcome of the last decided transaction, and the identity with which its records were written. If
the marker of that transaction was lost in a partition, the partition's leader gets the outcome from this field.

Assertions check that these impossible cases do not occur: partitions in EMPTY or COMPLETE_*; `next_id` or
`MARKER_EPOCH_MAX` outside of PREPARE_*; a change of the status that is not in `MOVES`, unless only the ledger changes.
In the log, several changes in one iteration of the event loop are merged into the last one, so the changes that a load
replays may not be in `MOVES`.
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
NO_TIMEOUT_MS: Final = (1 << 31) - 1
"""The timeout of a producer that takes part in a two-phase commit (KIP-939). Its transactions never time out."""


class TransactionStatus(IntEnum):
    """The status of a transactional id. The numbers are Kafka's; Kafka's 6 (DEAD) and 7 (PREPARE_EPOCH_FENCE) are never
    written.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def kafka_name(self) -> str:
        """The name of the status in responses to ListTransactions and DescribeTransactions."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_decided(self) -> bool:
        """Whether the outcome is decided (commit or abort) and not all markers are written yet."""
        return self in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)

    @property
    def is_commit(self) -> bool:
        return self in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)

    @property
    def is_between(self) -> bool:
        """Whether no transaction is open and no markers are pending. Only then may a transaction begin, another
        producer use the id, or the id be deleted.
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
"""The allowed changes of the status. None means that the id is unknown or deleted."""


class EndedBy(IntEnum):
    """The cause of the last decision. The error code for a late request of the producer depends on this cause."""

    CLIENT = 0
    TIMEOUT = 1
    FENCE = 2  # another producer took over the transactional id
    OPERATOR = 3


class TransactionPartition(NamedTuple):
    """A partition of a transaction. Kafka's tools need the topic's name; the id identifies the topic."""

    topic_id: TopicId
    topic: TopicName
    partition: PartitionIndex


class Outcome(Struct, frozen=True, gc=False):
    """The outcome of a transaction, and the identity with which its records were written."""

    identity: ProducerIdentity
    is_commit: bool


class Staged(Struct, frozen=True, gc=False):
    """The step and the member for which a slot (a transactional id) of a staged write is in use (staged_steps.py)."""

    step: int
    member: str
    prepared_ms: int = NO_TIME  # wall-clock time of the preparation; NO_TIME: not prepared
    prepared_timeout_ms: int = 0  # 0: transaction.prepared.timeout.ms


class Ledger(Struct, frozen=True, gc=False):
    """The last complete step of a query of staged writes (staged_steps.py), and the number of members that were
    committed. `is_final` means that the query has no later step.
    """

    last_step: int
    members: int
    is_final: bool = False


class Transaction(Struct, frozen=True, kw_only=True, gc=False):
    """The state of one transactional id. Times are wall-clock times, in ms.

    The garbage collector does not track these objects (`gc=False`). A shard has up to 100,000 of them, and each full
    collection would block the event loop for 100 ms.
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
    """The transaction.version of the last client. With version 2, each transaction has its own epoch (KIP-890)."""
    ended_by: EndedBy = EndedBy.CLIENT
    last_outcome: Outcome | None = None
    staged: Staged | None = None
    ledger: Ledger | None = None

    @property
    def next_identity(self) -> ProducerIdentity:
        """The identity for the producer's next request: the current identity or, if `next_id` is set, the identity
        after the pending markers.
        """
        if self.next_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_id, ProducerEpoch(0))
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_bumped(self) -> bool:
        """Whether the markers of the decided transaction have a higher producer epoch than its batches."""
        assert self.status.is_decided, f"{self.status.name} has no markers"
        # Records that Kafka has written contain no outcome.
        if self.last_outcome is None:
            return self.client_version >= 2
        return self.last_outcome.identity.epoch < self.producer_epoch

    @property
    def is_prepared(self) -> bool:
        """Whether this is a prepared member of a staged write, which is decided together with its step."""
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
        """Whether this is an unprepared member of a staged write, whose lease must be renewed."""
        return self.staged is not None and not self.is_prepared

    @property
    def retry_identity(self) -> ProducerIdentity | None:
        """The identity before the last epoch bump, if the producer may still repeat the request that caused the bump;
        otherwise None.

        If the current epoch is 0, the bump assigned a new producer id, and `last_epoch` belongs to `previous_id`.
        """
        if self.last_epoch == NO_EPOCH:
            return None
        holder = self.producer_id if self.producer_epoch > 0 else self.previous_id
        return ProducerIdentity(holder, self.last_epoch)

    def match(self, identity: ProducerIdentity) -> Match:
        """Return whether the identity of a request is current, that of a retried request, stale, or of another id."""
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
        """Whether the next epoch bump needs a new producer id."""
        return self.producer_epoch >= CLIENT_EPOCH_MAX

    def initialized(
        self, fresh_id: ProducerId | None, *, timeout_ms: int, is_same_producer: bool, wall_ms: int
    ) -> Transaction:
        """Return the state after the init of a producer. `fresh_id` must be given if `needs_fresh_id` is True."""
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
        """Return the state after the abort of a transaction without partitions, for which no markers are needed."""
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
        """Return the state after partitions were added to the open transaction, or to a new transaction."""
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
        """Return the state after the decision. `fresh_id` must be given if `is_bumped` and `needs_fresh_id`."""
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
        """Return the state after all partitions have acknowledged their marker."""
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
    """A record of `__transaction_state`. If `state` is None, the record deletes the transactional id."""

    transactional_id: TransactionalId
    state: Transaction | None


def created(producer_id: ProducerId, *, timeout_ms: int, wall_ms: int) -> Transaction:
    """Return the state of a new transactional id, with a producer at epoch 0."""
    return Transaction(
        producer_id=producer_id,
        producer_epoch=ProducerEpoch(0),
        timeout_ms=timeout_ms,
        update_ms=wall_ms,
    )


def created_ledger(*, wall_ms: int) -> Transaction:
    """Return the state of a new transactional id that only stores the ledger of a query, without a producer."""
    return Transaction(
        producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH, timeout_ms=0, update_ms=wall_ms
    )


def assert_legal(state: Transaction) -> None:
    """Assert that the values of the fields are consistent."""
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
