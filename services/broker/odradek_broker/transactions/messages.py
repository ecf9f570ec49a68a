"""Requests to the transaction coordinator of a transactional id, its responses, and the orders that it gives to its
host.

`wait_until_ms` is the time of the monotonic clock until which a request may wait for the completion of the previous
transaction. None stands for the time-out in the settings.
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
    """A request of a producer for a transactional id. `identity` is its present producer id and epoch; None: it has
    just started.
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
    """A request to register partitions with the producer's transaction, which begins if none is open."""

    transactional_id: TransactionalId
    identity: ProducerIdentity
    partitions: tuple[TransactionPartition, ...]
    is_tv2: bool
    wait_until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """The response to AddPartitions. `last_outcome` tells a partition leader how the producer's previous
    transaction ended.
    """

    error: ErrorCode = ErrorCode.NONE
    last_outcome: Outcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """A request to check whether these partitions are registered with the producer's open transaction."""

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
    """The response to EndTransaction. `next_identity` is for the next transaction; None for clients of older
    transaction versions.
    """

    error: ErrorCode = ErrorCode.NONE
    next_identity: ProducerIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransaction:
    """A request of an operator to abort a transaction; a prepared one is aborted only if `is_forced`."""

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
    """A request of a task to begin to write in a step of staged writes."""

    query: str
    step: int
    member: str
    prepared_timeout_ms: int = 0  # 0: the time-out of the cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The response to OpenStaged. `is_completed`: the step is complete already, so its records need not be written."""

    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    is_completed: bool = False
    slot: SlotIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewStaged:
    """A request to extend the leases of these members of a staged step."""

    members: tuple[SlotIdentity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortStaged:
    """A request to abort these members of a staged step and no others, because another process may be writing
    others.
    """

    members: tuple[SlotIdentity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersChecked:
    """The response to RenewStaged and AbortStaged: an error code for each member."""

    errors: Mapping[SlotIdentity, ErrorCode]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareStaged:
    """A request to mark a member of a staged step as prepared, because it has written all its records. Only the
    decision of its step then commits or aborts it.
    """

    member: SlotIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteStep:
    """A request to commit these members of a step, and to abort all others of the query up to this step, in
    one append.
    """

    query: str
    step: int
    members: tuple[SlotIdentity, ...]
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted:
    """The response to CompleteStep. `is_completed`: the step was complete before. `unfit`: the members that cannot be
    committed.
    """

    error: ErrorCode = ErrorCode.NONE
    is_completed: bool = False
    unfit: tuple[SlotIdentity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSteps:
    """A request of an operator to delete the ledger of a query, so that the query can begin again from an
    older step.
    """

    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsForgotten:
    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""


HoldableRequest: TypeAlias = InitProducer | AddPartitions | EndTransaction


class Resolution(Enum):
    """What a shard knows about an open transaction that a partition leader found."""

    # The transaction is open at this coordinator, or its markers are still to be written.
    LIVE = "live"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMarkers:
    """An order to the host: send these markers to the partition leaders, and report each acknowledgement to
    `TransactionShard.handle_marked`.

    `is_bumped`: the producer epoch of the markers is higher than that of the transaction's batches. `decision` is the
    number of the decision, unique until the shard is closed.
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
    """An order to update metrics: all partitions have their marker, `decided_for_ms` after the decision (or after the
    load). `open_ms` is the time from the first registration of a partition to the decision.
    """

    transactional_id: TransactionalId
    is_commit: bool
    ended_by: EndedBy
    open_ms: int
    decided_for_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionBegun:
    """A report for metrics: the first partition of a transaction is registered."""

    transactional_id: TransactionalId
