"""Requests to the transaction coordinator of a transactional id, its responses, and the orders that it gives.

`wait_until_ms` is the time of the monotonic clock until which a request may wait for the completion of the
transaction before. None stands for the wait of the settings.
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
    """A producer takes the id over. `identity` is the one it has; None: it has just started."""

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
    """Register partitions with the producer's transaction, and begin it if none is open."""

    transactional_id: TransactionalId
    identity: ProducerIdentity
    partitions: tuple[TransactionPartition, ...]
    is_tv2: bool
    wait_until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """`last_outcome` is that of the transaction before, from which a leader knows how an open one ended."""

    error: ErrorCode = ErrorCode.NONE
    last_outcome: Outcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """Ask whether these partitions are registered with the producer's open transaction."""

    transactional_id: TransactionalId
    identity: ProducerIdentity
    partitions: tuple[TransactionPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    errors: Mapping[TransactionPartition, ErrorCode]
    last_outcome: Outcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """The producer commits or aborts. `is_tv2`: EndTxn 5 and gRPC, whose decision gives the next identity."""

    transactional_id: TransactionalId
    identity: ProducerIdentity
    is_commit: bool
    is_tv2: bool
    wait_until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """`next_identity` is for the next transaction; None to a client of an older transaction version."""

    error: ErrorCode = ErrorCode.NONE
    next_identity: ProducerIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransaction:
    """An operator ends a transaction; a prepared one only by force."""

    transactional_id: TransactionalId
    is_forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class SlotIdentity(NamedTuple):
    """A member of a staged step: the transactional id of its slot, and the identity that it has there."""

    transactional_id: TransactionalId
    identity: ProducerIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStaged:
    """A task of a step wants to write. `member` names the attempt, so that a repeated request gets the same slot."""

    query: str
    step: int
    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """`is_completed`: the step is complete already, so that its rows need not be written."""

    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    is_completed: bool = False
    slot: SlotIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewStaged:
    """The leases of these members go on."""

    members: tuple[SlotIdentity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortStaged:
    """Exactly these members are aborted; another driver may be at work on others of their step."""

    members: tuple[SlotIdentity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersChecked:
    """The response to RenewStaged and AbortStaged: an error for each member."""

    errors: Mapping[SlotIdentity, ErrorCode]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareStaged:
    """A member has written and flushed everything. From now on only its step decides about it."""

    member: SlotIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteStep:
    """Commit these members of a step, and abort all others of the query up to this step, in one append."""

    query: str
    step: int
    members: tuple[SlotIdentity, ...]
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted:
    """`is_completed`: it had been complete already. `unfit` are members that cannot be committed."""

    error: ErrorCode = ErrorCode.NONE
    is_completed: bool = False
    unfit: tuple[SlotIdentity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSteps:
    """An operator wants the query to begin again: its ledger is deleted."""

    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsForgotten:
    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""


HoldableRequest: TypeAlias = InitProducer | AddPartitions | EndTransaction


class Resolution(Enum):
    """What a shard knows about an open transaction that a partition leader found."""

    LIVE = "live"  # it is registered here, or markers are due
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMarkers:
    """An order: write these markers to the leaders, and report each to `TransactionShard.handle_marked`.

    `is_bumped`: the marker's epoch is higher than the data's. `decision` numbers the decisions of a shard's life.
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
    """A report for metrics: every partition has its marker, `decided_for_ms` after the decision (or the load)."""

    transactional_id: TransactionalId
    is_commit: bool
    ended_by: EndedBy
    decided_for_ms: int
