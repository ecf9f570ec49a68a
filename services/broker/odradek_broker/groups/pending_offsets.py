"""Offsets that belong to open transactions, and count for their group when the transaction commits (KIP-447).

A producer's transaction is open in this partition from its first transactional record to its marker. Its offsets are
*pending* until then. A commit marker makes them the committed offsets, and an abort marker drops them.

Compaction keeps the latest record of a key, whatever marker came last. So a pending offset counts only while no later
record for the same group and partition has been committed: a plain commit, a deletion, or the offset of another
transaction whose record is later. Such a pending offset is dropped at once; the end of its transaction changes nothing.

A registration with the transaction's coordinator precedes the first record. The host of the shard asks for it between
two requests to the shard, so a number, the guard, identifies it. The end of the producer's transaction voids the guard:
a registration that was confirmed for a transaction that has ended meanwhile must not admit its offsets (KIP-890).
Shards of one process never share a number, so a guard of a shard that was loaded again is not valid in its successor.

Who asks the coordinators about a hanging transaction takes the guard first: if it is still valid afterwards, the
producer has neither written nor ended anything here since.
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
    """An offset of an open transaction; `order` rises with the records of the log."""

    committed: CommittedOffset
    order: int


class OpenTransaction(Struct, gc=False):
    """A producer's open transaction in this partition."""

    epoch: ProducerEpoch
    offsets: dict[tuple[GroupId, TopicPartition], PendingOffset] = field(default_factory=dict)


class PendingOffsets(Struct, gc=False):
    """The open transactions of one shard, with their offsets. `numbers` yields each guard only once."""

    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _transactions: dict[ProducerId, OpenTransaction] = field(default_factory=dict)
    _producers: dict[GroupId, dict[TopicPartition, set[ProducerId]]] = field(default_factory=dict)
    _guards: dict[ProducerId, int] = field(default_factory=dict)
    _last_order: int = 0

    def transaction_of(self, producer_id: ProducerId) -> OpenTransaction | None:
        return self._transactions.get(producer_id)

    def has_any(self, group_id: GroupId, partition: TopicPartition | None = None) -> bool:
        """Return whether the group has a pending offset in this partition, or in any partition if it is None."""
        partitions = self._producers.get(group_id, {})
        return bool(partitions) if partition is None else partition in partitions

    def groups(self) -> list[GroupId]:
        """Return the groups that have pending offsets."""
        return list(self._producers)

    def partitions_of(self, group_id: GroupId) -> list[TopicPartition]:
        """Return the partitions for which the group has pending offsets."""
        return list(self._producers.get(group_id, ()))

    def of(self, group_id: GroupId, partition: TopicPartition) -> Iterator[CommittedOffset]:
        """Return the group's pending offsets in this partition, one for each open transaction that has one."""
        for producer_id in self._producers.get(group_id, {}).get(partition, ()):
            yield self._transactions[producer_id].offsets[group_id, partition].committed

    def guard(self, producer_id: ProducerId) -> int:
        """Return the guard of the producer's registration that is in progress. If there is none, begin one with a new
        guard.
        """
        guard = self._guards.get(producer_id)
        if guard is None:
            if len(self._guards) >= REGISTRATIONS_MAX:
                # The oldest registration is dropped; its caller has to register again.
                del self._guards[next(iter(self._guards))]
            guard = self._guards[producer_id] = next(self.numbers)
        return guard

    def is_registered(self, producer_id: ProducerId, guard: int | None) -> bool:
        """Return whether the registration with this guard is still valid."""
        return guard is not None and self._guards.get(producer_id) == guard

    def add(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        group_id: GroupId,
        partition: TopicPartition,
        committed: CommittedOffset,
    ) -> None:
        """Add to the producer's open transaction the offset that one of its transactional records commits."""
        transaction = self._transactions.get(producer_id)
        if transaction is None or transaction.epoch != epoch:
            # Without a marker between them, the batches of two epochs are one transaction to readers of the log.
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
        """Drop the group's pending offsets of a partition whose records come before the committed record with the
        number `before_order`. None stands for the end of the log.
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
        """Remove the transaction of a producer, make its guard invalid, and return its offsets."""
        self._guards.pop(producer_id, None)
        transaction = self._transactions.get(producer_id)
        if transaction is None:
            return {}
        offsets = dict(transaction.offsets)
        for group_id, partition in offsets:
            self._drop(producer_id, group_id, partition)
        del self._transactions[producer_id]
        return offsets
