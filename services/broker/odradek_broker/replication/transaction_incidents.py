"""Counts and lists the damage to transactions that this broker found as a partition leader.

    torn       the transaction ended in this partition with another outcome than in its other partitions
    orphaned   the marker was lost; the leader ended the transaction when its producer began the next one
    hanging    the marker was lost, and no coordinator would have sent it again; the leader ended the transaction

All of them are consequences of an unclean election, or of a loss of power of all replicas at once.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from odradek_protocol.identity import Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicName

RECENT_MAX: Final = 64


class IncidentKind(StrEnum):
    """The kinds of damage to a transaction in a partition."""

    TORN = "torn"
    ORPHANED = "orphaned"
    HANGING = "hanging"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionIncident:
    """Damage to one transaction in one partition. `is_commit` is the transaction's outcome in that partition; for TORN,
    it is the opposite outcome, which the coordinator decided.
    """

    kind: IncidentKind
    topic: TopicName
    partition: PartitionIndex
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    first_offset: Offset
    is_commit: bool
    wall_ms: int


class TransactionIncidents:
    """The damage to transactions that was found since the start of the process. Only the event loop uses
    this object.
    """

    __slots__ = ("counts", "hanging", "recent")

    def __init__(self) -> None:
        self.counts: Counter[IncidentKind] = Counter()
        self.recent: deque[TransactionIncident] = deque(maxlen=RECENT_MAX)
        self.hanging = 0
        """The number of hanging transactions that the last check found and did not end."""

    def add(self, incident: TransactionIncident) -> None:
        """Count an incident, and add it to the list of recent incidents."""
        self.counts[incident.kind] += 1
        self.recent.append(incident)
