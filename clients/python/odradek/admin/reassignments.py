"""Reassignments of partitions: the moves in progress, and new replica lists for a replication factor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence

from odradek.admin.descriptions import LogDirDescription, Reassignment, TopicDescription
from odradek.partitions import TopicPartition


def brokers_in_moves(topics: Iterable[TopicDescription]) -> list[int]:
    """Return the brokers that have a replica of a partition that is moving."""
    return sorted(
        {
            broker
            for topic in topics
            for partition in topic.partitions
            if partition.adding_replicas or partition.removing_replicas
            for broker in partition.replicas
        }
    )


def reassignments_of(
    topics: Iterable[TopicDescription], directories: Iterable[LogDirDescription] = ()
) -> Generator[None, None, list[Reassignment]]:
    """Return the moves in progress, sorted by partition. `directories` have the sizes of logs. This is a generator
    that yields after each topic and directory, and returns the result.
    """
    bytes_on: dict[tuple[int, TopicPartition], int] = {}
    for directory in directories:
        for name, size_bytes in directory.partition_bytes.items():
            bytes_on[directory.broker_id, name] = size_bytes
        yield
    moves = []
    for topic in topics:
        for partition in topic.partitions:
            if not partition.adding_replicas and not partition.removing_replicas:
                continue
            name = TopicPartition(topic.name, partition.partition)
            leader_bytes = bytes_on.get((partition.leader_id, name))
            total = copied = None
            if leader_bytes is not None:
                total = leader_bytes * len(partition.adding_replicas)
                # A replica may have more bytes than its leader for a moment, because the leader has already deleted old
                # segments.
                copied = sum(
                    leader_bytes
                    if broker in partition.isr
                    else min(leader_bytes, bytes_on.get((broker, name), 0))
                    for broker in partition.adding_replicas
                )
            moves.append(
                Reassignment(
                    partition=name,
                    leader_id=partition.leader_id,
                    replicas=partition.replicas,
                    adding=partition.adding_replicas,
                    removing=partition.removing_replicas,
                    isr=partition.isr,
                    total_bytes=total,
                    copied_bytes=copied,
                )
            )
        yield
    return sorted(moves, key=lambda move: move.partition)


def with_replica_count(
    topic: TopicDescription,
    count: int,
    *,
    loads: Mapping[int, int],
    racks: Mapping[int, str] | None = None,
    hosts: Mapping[int, str] | None = None,
) -> dict[int, tuple[int, ...]]:
    """Return the partitions of a topic that must change to have `count` replicas, with their new replicas.

    A partition that gets more replicas gets them on brokers of other racks and hosts first, then on those with the
    fewest replicas. A partition that gets fewer loses replicas that are not in sync first. It keeps its preferred
    leader, and as many racks and hosts as it can.

    Args:
        topic: The topic as it is.
        count: The new replication factor.
        loads: The number of replicas on each broker that may get one.
        racks: The rack of each broker that has one.
        hosts: The host of each broker; a broker that it does not name is a host of its own.

    Raises:
        ValueError: there are fewer brokers than `count`.
    """
    if count > len(loads):
        raise ValueError(f"{count} replicas need {count} brokers, and there are only {len(loads)}")
    places = [racks or {}, hosts or {}]
    totals = Counter(loads)
    plan = {}
    for partition in topic.partitions:
        replicas = [b for b in partition.replicas if b not in partition.adding_replicas]
        while len(replicas) > count:
            victim = _most_dispensable(replicas, partition.isr, totals, places)
            replicas.remove(victim)
            totals[victim] -= 1
        while len(replicas) < count:
            newcomer = min(
                (broker for broker in loads if broker not in replicas),
                key=lambda broker: (
                    *(_sharing(broker, replicas, place) for place in places),
                    totals[broker],
                    broker,
                ),
            )
            replicas.append(newcomer)
            totals[newcomer] += 1
        if tuple(replicas) != partition.replicas:
            plan[partition.partition] = tuple(replicas)
    return plan


def _most_dispensable(
    replicas: Sequence[int],
    isr: Collection[int],
    totals: Mapping[int, int],
    places: Sequence[Mapping[int, str]],
) -> int:
    """Return the replica whose removal costs the partition least."""

    def order(broker: int) -> tuple[bool, bool, int, int, int, int]:
        others = [other for other in replicas if other != broker]
        on_rack, on_host = (_sharing(broker, others, place) for place in places)
        is_preferred = broker == replicas[0]
        return (
            broker in isr,
            is_preferred,
            -on_rack,
            -on_host,
            -totals[broker],
            -replicas.index(broker),
        )

    return min(replicas, key=order)


def _sharing(broker: int, others: Sequence[int], place: Mapping[int, str]) -> int:
    """Return how many of the other brokers are in the same rack or on the same host."""
    own = place.get(broker)
    return 0 if own is None else sum(place.get(other) == own for other in others)
