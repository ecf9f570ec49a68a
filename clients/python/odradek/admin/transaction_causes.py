"""Explains why a transaction does not end, as chains of causes like those in causes.py.

An open transaction that is younger than OPEN_MS is not a fault. If its partitions and its coordinator work, it ends
without help: the producer ends it, or the coordinator aborts it after its timeout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from odradek.admin.causes import Cause, Look, coordinator_cause, joined, partition_causes
from odradek.admin.transaction_admin import OldTransaction, TransactionDescription
from odradek.partitions import TopicPartition
from odradek_protocol.topic_names import TRANSACTIONS_TOPIC

OPEN_MS: Final = 5_000
"""An open transaction that is older than this is reported as a cause."""
# With this timeout, the coordinator never aborts the transaction.
_NO_TIMEOUT_MS: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLook:
    """The state of a transactional id at the time of one examination."""

    name: str
    description: TransactionDescription | None = None
    error: str = ""
    """Why no coordinator described the transactional id; empty if one described it."""
    was_decided: bool = False
    """Whether the transaction was already decided (PrepareCommit or PrepareAbort) some seconds before the examination.
    """
    hanging: tuple[OldTransaction, ...] = ()
    """The open transactions of the producer that no coordinator will end."""
    now_ms: int = 0
    """The time of the examination, in ms since the Unix epoch."""

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The known partitions of the open transaction."""
        return self.description.partitions if self.description is not None else ()


def transaction_causes(look: Look, transaction: TransactionLook) -> list[Cause]:
    """Return why the transaction of a transactional id does not end; empty if no transaction is open, or if it is
    younger than OPEN_MS.
    """
    name, described = transaction.name, transaction.description
    if described is None:
        subject = f"transactional id {name}"
        return [coordinator_cause(look, subject, TRANSACTIONS_TOPIC, transaction.error)]
    causes = hanging_causes(transaction.hanging)
    partitions = sorted(n for n in described.partitions if n in look.partitions)
    stopped = tuple(partition_causes(look, partitions, is_stopped=True))
    producer = f"producer {described.producer_id} with epoch {described.producer_epoch}"
    if described.state.startswith("Prepare") and transaction.was_decided:
        outcome = "commit" if "Commit" in described.state else "abort"
        return [
            *causes,
            Cause(
                what=f"the transaction of {name} is decided, but not complete, so read_committed consumers wait",
                evidence=f"its state is {described.state} ({producer}); the marker is missing in {joined(partitions)}",
                remedy=""
                if stopped
                else f"wait: the coordinator retries the {outcome} until it succeeds; the brokers' logs say why"
                " it fails",
                because=stopped,
            ),
        ]
    if described.state != "Ongoing" or described.started_ms is None:
        return causes
    open_ms = transaction.now_ms - described.started_ms
    if open_ms < OPEN_MS and not stopped:
        return causes
    remaining_s = max(0, described.timeout_ms - open_ms) / 1000
    is_endless = described.timeout_ms >= _NO_TIMEOUT_MS
    timeout = (
        "its coordinator never aborts it"
        if is_endless
        else f"its coordinator aborts it in {remaining_s:.0f} s"
    )
    remedy = (
        f"end it in its producer, or abort it with `odradek transaction abort {name}`; {timeout}"
    )
    return [
        *causes,
        Cause(
            what=f"the transaction of {name} is open, so read_committed consumers wait",
            evidence=f"{producer} began it {open_ms / 1000:.0f} s ago; it has records in {joined(partitions)}",
            remedy=remedy,
            because=stopped,
        ),
    ]


def hanging_causes(hanging: Iterable[OldTransaction]) -> list[Cause]:
    """Return one cause for each transaction that is open in a partition although no coordinator will end it."""
    return [
        Cause(
            what=f"{old.partition}: read_committed consumers wait for a transaction that no coordinator will end",
            evidence=f"producer {old.producer_id} began it at offset {old.first_offset}; it has been open for"
            f" {old.open_for_ms / 1000:.0f} s, and the coordinators report it as {old.state.value}",
            remedy="end it with `odradek transaction find-hanging --abort`; brokers end it automatically unless"
            " transaction.hanging.abort.enable is false",
        )
        for old in hanging
    ]
