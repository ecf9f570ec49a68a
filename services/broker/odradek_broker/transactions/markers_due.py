"""The partitions that have not acknowledged the marker of a decided transaction.

Each decision has a number, which the shard assigns in rising order, and an acknowledgement contains the number of its
decision. Thus a late acknowledgement for an earlier transaction of the same transactional id has no effect
(KAFKA-16352). Acknowledgements are in memory only. After a load, all markers are sent again, and partition leaders
accept repeated markers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from odradek_broker.transactions.transaction import TransactionalId, TransactionPartition


@dataclass(slots=True)
class DueMarkers:
    """One decision, with the partitions that have not acknowledged its marker."""

    transactional_id: TransactionalId
    decided_ms: int  # monotonic time of the decision
    partitions: set[TransactionPartition]


@dataclass(slots=True)
class MarkersDue:
    """The committed and aborted transactions of one coordinator shard whose markers are not all written yet."""

    _decisions: dict[int, DueMarkers] = field(default_factory=dict)
    _last_decision: int = 0

    def __len__(self) -> int:
        return len(self._decisions)

    def begin(
        self,
        transactional_id: TransactionalId,
        partitions: frozenset[TransactionPartition],
        *,
        now_ms: int,
    ) -> int:
        """Add a decision, and return its number."""
        self._last_decision += 1
        self._decisions[self._last_decision] = DueMarkers(transactional_id, now_ms, set(partitions))
        return self._last_decision

    def acknowledge(self, decision: int, partition: TransactionPartition) -> DueMarkers | None:
        """Record that a partition has its marker. If no marker of the decision is pending any more, remove and return
        the decision; otherwise return None.
        """
        due = self._decisions.get(decision)
        if due is None:
            return None
        due.partitions.discard(partition)
        if due.partitions:
            return None
        del self._decisions[decision]
        return due

    def oldest_ms(self) -> int | None:
        """Return the monotonic time of the oldest decision with pending markers, or None if there is none."""
        return min((due.decided_ms for due in self._decisions.values()), default=None)

    def partitions_of(self, transactional_id: TransactionalId) -> frozenset[TransactionPartition]:
        """Return the partitions with pending markers of a transactional id."""
        for due in self._decisions.values():
            if due.transactional_id == transactional_id:
                return frozenset(due.partitions)
        return frozenset()
