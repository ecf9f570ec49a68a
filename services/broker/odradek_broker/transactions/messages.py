"""Requests to a transaction coordinator, its responses, and its orders to the host.

In requests, `wait_until_ms` is the monotonic time until which the request may wait for the completion of the producer's
previous transaction. None means that the settings limit the wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.transaction import (
    EndedBy,
    Outcome,
    TransactionalId,
    TransactionPartition,
)
from odradek_protocol.identity import ProducerEpoch, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer:
    """A producer's request for a producer id and epoch (InitProducerId). `identity` is the producer's current id and
    epoch, or None if the producer has just started.
    """

    transactional_id: TransactionalId
    timeout_ms: int
    identity: ProducerIdentity | None = None
    is_two_phase: bool = False
    wait_until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialized:
    error: ErrorCode = ErrorCode.NONE
    identity: ProducerIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """A request to add partitions to the producer's transaction. If no transaction is open, one begins."""

    transactional_id: TransactionalId
    identity: ProducerIdentity
    partitions: tuple[TransactionPartition, ...]
    is_tv2: bool
    wait_until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """The response to AddPartitions. `last_outcome` is the outcome of the producer's previous transaction, which a
    partition leader needs if the marker of that transaction was lost.
    """

    error: ErrorCode = ErrorCode.NONE
    last_outcome: Outcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """A request to check whether partitions belong to the producer's open transaction."""

    transactional_id: TransactionalId
    identity: ProducerIdentity
    partitions: tuple[TransactionPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    errors: Mapping[TransactionPartition, ErrorCode]
    last_outcome: Outcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """A request of a producer to commit or abort its transaction."""

    transactional_id: TransactionalId
    identity: ProducerIdentity
    is_commit: bool
    is_tv2: bool
    wait_until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The response to EndTransaction. `next_identity` is the identity for the next transaction, or None for clients of
    transaction versions 0 and 1.
    """

    error: ErrorCode = ErrorCode.NONE
    next_identity: ProducerIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransaction:
    """An operator's request to abort a transaction. A prepared transaction is aborted only if `is_forced` is True."""

    transactional_id: TransactionalId
    is_forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class SlotIdentity(NamedTuple):
    """A member of a staged step (staged_steps.py): the transactional id of its slot, and its producer identity."""

    transactional_id: TransactionalId
    identity: ProducerIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStaged:
    """A request of a task to become a member of a step of staged writes."""

    query: str
    step: int
    member: str
    prepared_timeout_ms: int = 0  # 0: transaction.prepared.timeout.ms applies


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The response to OpenStaged. `is_completed` means that the step is complete, so the task must not write."""

    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    is_completed: bool = False
    slot: SlotIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewStaged:
    """A request to extend the leases of members of a step."""

    members: tuple[SlotIdentity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortStaged:
    """A request to abort members of a step. Other members are not aborted, because another process may use them."""

    members: tuple[SlotIdentity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersChecked:
    """The response to RenewStaged and AbortStaged: an error code for each member of a step of staged writes."""

    errors: Mapping[SlotIdentity, ErrorCode]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareStaged:
    """A request to mark a member of a step as prepared, because the member has written all its records. From then on,
    the member is committed or aborted together with its step.
    """

    member: SlotIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteStep:
    """A request to commit the given members of a step, and to abort all other members of the query in this and earlier
    steps. All records are written in one append.
    """

    query: str
    step: int
    members: tuple[SlotIdentity, ...]
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted:
    """The response to CompleteStep. `is_completed` means that the step was already complete before the request. If some
    members cannot be committed, `unfit` lists them, and the step was not changed.
    """

    error: ErrorCode = ErrorCode.NONE
    is_completed: bool = False
    unfit: tuple[SlotIdentity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSteps:
    """An operator's request to delete the ledger of a query, so that the query can be replayed from an older step."""

    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsForgotten:
    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""


HoldableRequest: TypeAlias = InitProducer | AddPartitions | EndTransaction


class Resolution(Enum):
    """A coordinator shard's response about a transaction that is open in a partition."""

    # The transaction is open at this coordinator, or its markers are pending.
    LIVE = "live"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMarkers:
    """An order to send the markers of a decided transaction to partition leaders, and to report each acknowledgement
    to `TransactionShard.handle_marked`.

    `is_bumped` means that the producer epoch of the markers is higher than the epoch of the transaction's batches.
    `decision` is the number of the decision, which is unique within the shard.
    """

    decision: int
    transactional_id: TransactionalId
    producer_id: ProducerId
    marker_epoch: ProducerEpoch
    is_commit: bool
    is_bumped: bool
    partitions: frozenset[TransactionPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCompleted:
    """An order to update metrics, because all partitions of a transaction have their marker.

    `open_ms` is the time from the addition of the first partition to the decision. `decided_for_ms` is the time from
    the decision (or from the load of the shard, if that is later) to the completion.
    """

    transactional_id: TransactionalId
    is_commit: bool
    ended_by: EndedBy
    open_ms: int
    decided_for_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionBegun:
    """An order to update metrics, because the first partition was added to a new transaction."""

    transactional_id: TransactionalId
