"""Reassignments of partitions: the moves in progress, and replica lists for a new replication factor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence

from odradek.admin.descriptions import LogDirDescription, Reassignment, TopicDescription
from odradek.partitions import TopicPartition


def brokers_in_moves(topics: Iterable[TopicDescription]) -> list[int]:
    """Return the ids of the brokers that have a replica of a moving partition, sorted."""
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
    """Return the moves in progress, sorted by partition. `directories` contain the sizes of the logs.

    This is a generator, so that a large cluster does not block the event loop: it yields after each topic and
    directory.
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
                # At most the leader's bytes are counted. A replica may have more bytes than its leader for a moment,
                # because the leader deletes old segments first.
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

    New replicas are placed in the racks and on the hosts that have the fewest replicas of the partition; among the
    brokers of these racks and hosts, those with the fewest replicas are chosen. Replicas that are not in sync are
    removed first. A partition keeps its preferred leader if that replica is in sync, and as many racks and hosts as
    possible.

    Args:
        topic: The topic with its present replicas.
        count: The new replication factor.
        loads: The number of replicas by broker, for each broker that may get a replica.
        racks: The rack by broker.
        hosts: The host by broker. A broker that is missing in `hosts` is assumed to be alone on its host.

    Raises:
        ValueError: there are fewer brokers than `count`.
    """
    if count > len(loads):
        raise ValueError(f"{count} replicas need {count} brokers, but there are only {len(loads)}")
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
    """Return the replica to remove. Replicas that are out of sync come before those in sync, and in both groups the
    preferred leader comes last. Among equals, the replica that shares its rack or host with the most others is chosen,
    or else the one on the most loaded broker.
    """

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
    """Return how many of the brokers `others` are in the same place as `broker`. `place` maps brokers to racks, or to
    hosts.
    """
    own_place = place.get(broker)
    return 0 if own_place is None else sum(place.get(other) == own_place for other in others)
