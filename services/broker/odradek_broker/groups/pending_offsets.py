"""Pending offsets: offsets that a producer has written in an open transaction (KIP-447).

A producer's transaction is open in a partition of `__consumer_offsets` from its first record to its marker, and its
offsets are *pending* for that time. A commit marker turns them into committed offsets, and an abort marker discards
them.

Compaction keeps the latest record of a key, independent of the order of the markers. Therefore a pending offset is
superseded, and discarded at once, when a later record for the same group and partition takes effect: a commit without a
transaction, a deletion, or a record of another transaction that commits.

Before the first record of a transaction is written, the transaction coordinator must have added the partition to the
transaction (a registration). The registration happens between two requests to the shard, and is identified by a number,
its *guard*. The guard becomes invalid when the producer writes an offset, or when its transaction ends. If the guard
stayed valid after the end, a registration for the ended transaction could admit offsets after the transaction's marker
(KIP-890). All shards of a process draw guards from one sequence, so a guard of a closed shard is not valid in the shard
that replaces it.

The guard is also used to end a hanging transaction. The caller reads the guard before it asks the coordinators about
the transaction. If the guard is still valid after that, the producer has neither written nor ended anything in this
partition in the meantime.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

from msgspec import Struct, field

from odradek_broker.groups.messages import CommittedOffset
from odradek_protocol.identity import GroupId, ProducerEpoch, ProducerId, TopicPartition

REGISTRATIONS_MAX: Final = 10_000


class PendingOffset(Struct, frozen=True, gc=False):
    """An offset that a group commits in an open transaction. `order` is higher if its record is later in the log."""

    committed: CommittedOffset
    order: int


class OpenTransaction(Struct, gc=False):
    """A producer's open transaction in this partition."""

    epoch: ProducerEpoch
    offsets: dict[tuple[GroupId, TopicPartition], PendingOffset] = field(default_factory=dict)


class PendingOffsets(Struct, gc=False):
    """The open transactions of one shard, with their offsets. `numbers` yields the guards."""

    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _transactions: dict[ProducerId, OpenTransaction] = field(default_factory=dict)
    _producers: dict[GroupId, dict[TopicPartition, set[ProducerId]]] = field(default_factory=dict)
    _guards: dict[ProducerId, int] = field(default_factory=dict)
    _last_order: int = 0

    def transaction_of(self, producer_id: ProducerId) -> OpenTransaction | None:
        return self._transactions.get(producer_id)

    def has_any(self, group_id: GroupId, partition: TopicPartition | None = None) -> bool:
        """Return whether the group has a pending offset in a partition, or in any partition if `partition` is None."""
        partitions = self._producers.get(group_id, {})
        return bool(partitions) if partition is None else partition in partitions

    def groups(self) -> list[GroupId]:
        """Return the groups that have pending offsets."""
        return list(self._producers)

    def partitions_of(self, group_id: GroupId) -> list[TopicPartition]:
        """Return the partitions for which the group has pending offsets."""
        return list(self._producers.get(group_id, ()))

    def of(self, group_id: GroupId, partition: TopicPartition) -> Iterator[CommittedOffset]:
        """Yield the group's pending offsets in a partition. Several open transactions may each have a pending offset
        for the partition.
        """
        for producer_id in self._producers.get(group_id, {}).get(partition, ()):
            yield self._transactions[producer_id].offsets[group_id, partition].committed

    def guard(self, producer_id: ProducerId) -> int:
        """Return the producer's guard, and create one if needed. The guard is valid until the producer writes an offset
        or its transaction ends.
        """
        guard = self._guards.get(producer_id)
        if guard is None:
            if len(self._guards) >= REGISTRATIONS_MAX:
                # Discard the oldest guard. The next commit of its producer needs a new registration.
                del self._guards[next(iter(self._guards))]
            guard = self._guards[producer_id] = next(self.numbers)
        return guard

    def is_registered(self, producer_id: ProducerId, guard: int | None) -> bool:
        """Return whether `guard` is still the producer's guard."""
        return guard is not None and self._guards.get(producer_id) == guard

    def add(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        group_id: GroupId,
        partition: TopicPartition,
        committed: CommittedOffset,
    ) -> None:
        """Add a group's committed offset, from a record that was written in a transaction, to the producer's open
        transaction. If no transaction is open, one begins.
        """
        transaction = self._transactions.get(producer_id)
        if transaction is None or transaction.epoch != epoch:
            # Consumers of the log treat batches with two epochs as one transaction if there is no marker between them.
            offsets = {} if transaction is None else transaction.offsets
            transaction = self._transactions[producer_id] = OpenTransaction(epoch, offsets)
        self._last_order += 1
        transaction.offsets[group_id, partition] = PendingOffset(committed, self._last_order)
        producers = self._producers.setdefault(group_id, {}).setdefault(partition, set())
        producers.add(producer_id)
        self._guards.pop(producer_id, None)

    def supersede(
        self, group_id: GroupId, partition: TopicPartition, *, before_order: int | None = None
    ) -> None:
        """Discard the group's pending offsets in a partition whose `order` is below `before_order`. If `before_order`
        is None, discard all of the group's pending offsets in the partition.
        """
        for producer_id in list(self._producers.get(group_id, {}).get(partition, ())):
            pending = self._transactions[producer_id].offsets[group_id, partition]
            if before_order is None or pending.order < before_order:
                self._drop(producer_id, group_id, partition)

    def _drop(self, producer_id: ProducerId, group_id: GroupId, partition: TopicPartition) -> None:
        del self._transactions[producer_id].offsets[group_id, partition]
        partitions = self._producers[group_id]
        partitions[partition].discard(producer_id)
        if not partitions[partition]:
            del partitions[partition]
        if not partitions:
            del self._producers[group_id]

    def end(self, producer_id: ProducerId) -> dict[tuple[GroupId, TopicPartition], PendingOffset]:
        """Remove the open transaction of a producer and return its pending offsets. The producer's guard becomes
        invalid.
        """
        self._guards.pop(producer_id, None)
        transaction = self._transactions.get(producer_id)
        if transaction is None:
            return {}
        offsets = dict(transaction.offsets)
        for group_id, partition in offsets:
            self._drop(producer_id, group_id, partition)
        del self._transactions[producer_id]
        return offsets
