"""The server-side assignors of KIP-848, uniform and range. They are pure functions of subscriptions and topics.

Each assignor assigns every partition of each subscribed topic to exactly one subscriber. `uniform` balances the number
of partitions per member, and keeps previous assignments if the balance allows this. `range` assigns the partitions of
each topic in contiguous ranges, so that topics with the same number of partitions are co-partitioned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from odradek_broker.groups.messages import Assignment
from odradek_protocol.identity import MemberId, PartitionIndex, TopicId

Subscriptions = Mapping[MemberId, frozenset[TopicId]]
Counts = Mapping[TopicId, int]  # the number of partitions of each topic
Pair = tuple[TopicId, PartitionIndex]
_LOOKS_MAX: Final = 30_000
Assignor = Callable[
    [Subscriptions, Counts, Mapping[MemberId, Assignment]], dict[MemberId, Assignment]
]


def assign_range(
    subscriptions: Subscriptions, counts: Counts, previous: Mapping[MemberId, Assignment]
) -> dict[MemberId, Assignment]:
    """Assign contiguous ranges of each topic's partitions to its subscribers, in the order of their member ids."""
    shares: dict[MemberId, dict[TopicId, frozenset[PartitionIndex]]] = {
        m: {} for m in subscriptions
    }
    for topic, count in sorted(counts.items()):
        members = sorted(m for m, topics in subscriptions.items() if topic in topics)
        if not members:
            continue
        size, larger = divmod(count, len(members))
        first = 0
        for index, member in enumerate(members):
            end = first + size + (1 if index < larger else 0)
            if end > first:
                shares[member][topic] = frozenset(PartitionIndex(p) for p in range(first, end))
            first = end
    return dict(shares)


def assign_uniform(
    subscriptions: Subscriptions, counts: Counts, previous: Mapping[MemberId, Assignment]
) -> dict[MemberId, Assignment]:
    """Assign partitions so that members have about the same number, and keep previous assignments if possible.

    First, each member keeps previous partitions up to its share. Then each remaining partition is assigned to the
    subscriber with the fewest partitions. No step iterates over all members for each partition, because the computation
    blocks the event loop.
    """
    # Members with equal sets of subscribed topics form a class.
    classes: dict[frozenset[TopicId], list[MemberId]] = {}
    for member, topics in subscriptions.items():
        classes.setdefault(topics, []).append(member)
    subscribed: frozenset[TopicId] = frozenset().union(*classes)
    assignable = sum(count for topic, count in counts.items() if topic in subscribed)
    small, larger_left = divmod(assignable, max(1, len(subscriptions)))
    owned: dict[MemberId, list[Pair]] = {member: [] for member in subscriptions}
    taken: dict[TopicId, set[PartitionIndex]] = {topic: set() for topic in counts}
    for member in sorted(subscriptions, key=lambda m: (-_size(previous.get(m, {})), m)):
        keeps = [
            (topic, index)
            for topic, indexes in sorted(previous.get(member, {}).items())
            if topic in counts and topic in subscriptions[member]
            for index in sorted(indexes - taken[topic])
            if index < counts[topic]
        ]
        limit = small
        if len(keeps) > small and larger_left > 0:
            limit, larger_left = small + 1, larger_left - 1
        owned[member] = keeps[:limit]
        for topic, index in owned[member]:
            taken[topic].add(index)
    queues: dict[tuple[int, ...], _LeastLoaded] = {}
    members = list(classes.values())
    classes_of: dict[TopicId, list[int]] = {}
    for number, topics in enumerate(classes):
        for topic in topics:
            classes_of.setdefault(topic, []).append(number)
    for topic in sorted(subscribed & counts.keys()):
        subscribers = tuple(classes_of[topic])
        queue = queues.get(subscribers)
        if queue is None:
            queue = queues[subscribers] = _LeastLoaded(
                owned, [member for number in subscribers for member in members[number]]
            )
        for index in map(PartitionIndex, range(counts[topic])):
            if index not in taken[topic]:
                queue.give((topic, index))
    if len(classes) > 1:  # with one class only, the queue has already balanced the loads
        _even_out(owned, classes)
    return {member: _grouped(pairs) for member, pairs in owned.items()}


class _LeastLoaded:
    """A heap of members, ordered by their number of partitions. While a heap is used, these numbers may only rise."""

    def __init__(self, owned: dict[MemberId, list[Pair]], members: Iterable[MemberId]) -> None:
        self._owned = owned
        self._heap = [(len(owned[member]), member) for member in members]
        heapify(self._heap)

    def give(self, pair: Pair) -> None:
        """Assign a partition to the member with the fewest partitions."""
        heap, owned = self._heap, self._owned
        load, member = heap[0]
        while load != len(owned[member]):  # another queue has assigned partitions to the member
            heapreplace(heap, (len(owned[member]), member))
            load, member = heap[0]
        owned[member].append(pair)
        heapreplace(heap, (load + 1, member))


def _even_out(
    owned: dict[MemberId, list[Pair]], classes: Mapping[frozenset[TopicId], list[MemberId]]
) -> None:
    """Move single partitions to subscribers with at least two partitions fewer than their owners, until no such move is
    possible.

    Partitions are moved from the members with the most partitions first. The work is bounded, so with thousands of
    different subscriptions the result may be less balanced.
    """
    class_of = {member: topics for topics, members in classes.items() for member in members}
    looks_left = _LOOKS_MAX
    has_moved = True
    while has_moved:
        has_moved = False
        fewest = min(map(len, owned.values()), default=0)
        givers = [(-len(pairs), member) for member, pairs in owned.items()]
        heapify(givers)
        takers = {
            topics: [(len(owned[m]), m) for m in members] for topics, members in classes.items()
        }
        for heap in takers.values():
            heapify(heap)
        while givers and -givers[0][0] - fewest >= 2 and looks_left > 0:
            load, giver = heappop(givers)
            pairs = owned[giver]
            if -load != len(pairs):
                continue  # the number of partitions in the heap entry is outdated
            looks_left -= len(takers)
            topics_owned = {topic for topic, _ in pairs}
            best: tuple[int, MemberId] | None = None
            for topics, heap in takers.items():
                if topics.isdisjoint(topics_owned):
                    continue
                while heap[0][0] != len(owned[heap[0][1]]):
                    heappop(heap)
                best = heap[0] if best is None else min(best, heap[0])
            if best is None or len(pairs) - best[0] < 2:
                continue
            taker = best[1]
            position = max(n for n, (topic, _) in enumerate(pairs) if topic in class_of[taker])
            owned[taker].append(pairs.pop(position))
            has_moved = True
            for member in (giver, taker):
                heappush(givers, (-len(owned[member]), member))
                heappush(takers[class_of[member]], (len(owned[member]), member))


def _size(assignment: Assignment) -> int:
    return sum(len(indexes) for indexes in assignment.values())


def _grouped(pairs: list[Pair]) -> Assignment:
    grouped: dict[TopicId, set[PartitionIndex]] = {}
    for topic, index in pairs:
        grouped.setdefault(topic, set()).add(index)
    return {topic: frozenset(indexes) for topic, indexes in grouped.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
