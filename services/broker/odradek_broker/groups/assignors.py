"""The server-side assignors of KIP-848, uniform and range: pure functions of subscriptions and topics.

Both assign each partition of each subscribed topic to exactly one subscriber. `uniform` balances the
number of partitions per member, and keeps previous assignments where the balance allows it. `range`
assigns the partitions of each topic in contiguous runs, so that topics with equal partition counts are
co-partitioned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from odradek_broker.groups.messages import Assignment
from odradek_protocol.identity import MemberId, PartitionIndex, TopicId

Subscriptions = Mapping[MemberId, frozenset[TopicId]]
Counts = Mapping[TopicId, int]  # number of partitions of each topic
Assignor = Callable[
    [Subscriptions, Counts, Mapping[MemberId, Assignment]], dict[MemberId, Assignment]
]


def assign_range(
    subscriptions: Subscriptions, counts: Counts, previous: Mapping[MemberId, Assignment]
) -> dict[MemberId, Assignment]:
    """Assign each topic in contiguous runs to its subscribers, in the order of their member ids."""
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
    """Assign partitions so that members have equally many, and keep previous assignments where possible.

    First each member keeps previous partitions up to its share. Then each remaining partition goes to the
    subscriber with the fewest.
    """
    partitions = [
        (topic, PartitionIndex(p)) for topic in sorted(counts) for p in range(counts[topic])
    ]
    subscribers = {
        topic: sorted(m for m, topics in subscriptions.items() if topic in topics)
        for topic in counts
    }
    owned: dict[MemberId, list[tuple[TopicId, PartitionIndex]]] = {m: [] for m in subscriptions}
    taken: set[tuple[TopicId, PartitionIndex]] = set()
    assignable = [p for p in partitions if subscribers[p[0]]]
    share = -(-len(assignable) // max(1, len(subscriptions)))
    small = len(assignable) // max(1, len(subscriptions))
    larger_left = len(assignable) - small * len(subscriptions)
    for member in sorted(subscriptions, key=lambda m: (-_size(previous.get(m, {})), m)):
        keeps = [
            (topic, index)
            for topic, indexes in sorted(previous.get(member, {}).items())
            for index in sorted(indexes)
            if topic in subscriptions[member]
            and index < counts.get(topic, 0)
            and (topic, index) not in taken
        ]
        limit = small
        if len(keeps) > small and larger_left > 0:
            limit, larger_left = share, larger_left - 1
        owned[member] = keeps[:limit]
        taken.update(owned[member])
    for topic, index in assignable:
        if (topic, index) in taken:
            continue
        member = min(subscribers[topic], key=lambda m: (len(owned[m]), m))
        owned[member].append((topic, index))
    _even_out(owned, subscriptions)
    return {member: _grouped(pairs) for member, pairs in owned.items()}


def _even_out(
    owned: dict[MemberId, list[tuple[TopicId, PartitionIndex]]], subscriptions: Subscriptions
) -> None:
    """Move partitions, one at a time, to a subscriber that has at least two fewer, until no move is left."""
    for _ in range(sum(len(pairs) for pairs in owned.values())):
        for giver in sorted(owned, key=lambda m: (-len(owned[m]), m)):
            move = _move_from(giver, owned, subscriptions)
            if move is not None:
                taker, pair = move
                owned[giver].remove(pair)
                owned[taker].append(pair)
                break
        else:
            return


def _move_from(
    giver: MemberId,
    owned: dict[MemberId, list[tuple[TopicId, PartitionIndex]]],
    subscriptions: Subscriptions,
) -> tuple[MemberId, tuple[TopicId, PartitionIndex]] | None:
    for taker in sorted(owned, key=lambda m: (len(owned[m]), m)):
        if len(owned[giver]) - len(owned[taker]) < 2:
            return None
        for pair in reversed(owned[giver]):
            if pair[0] in subscriptions[taker]:
                return taker, pair
    return None


def _size(assignment: Assignment) -> int:
    return sum(len(indexes) for indexes in assignment.values())


def _grouped(pairs: list[tuple[TopicId, PartitionIndex]]) -> Assignment:
    grouped: dict[TopicId, set[PartitionIndex]] = {}
    for topic, index in pairs:
        grouped.setdefault(topic, set()).add(index)
    return {topic: frozenset(indexes) for topic, indexes in grouped.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
