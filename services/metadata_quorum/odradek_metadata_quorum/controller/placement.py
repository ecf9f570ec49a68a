"""The choice of brokers for the replicas of new partitions: leaders are spread evenly over brokers, and followers over
hosts and racks.

*Leaders.* The preferred leader of a new partition is the live broker that is the preferred leader of the fewest
partitions of the topic. If several brokers have the same number, the one with the fewest partitions in the cluster is
taken. So a new topic assigns its partitions in laps: each full *lap* gives every live broker one leadership. Only the
last lap may be partial, and its leaderships go to the brokers that lead the fewest partitions. As long as the set of
live brokers does not change, this follows:

- Within one topic, the numbers of leaderships of any two brokers differ by at most 1.
- Let D be the difference between the highest and the lowest number of leaderships of a broker in the cluster. If topics
  are only created, D is at most 1, however the partitions are divided into topics and requests. (A full lap does not
  change D. A partial lap goes to the brokers with the fewest leaderships. If it does not include a broker with the
  highest number, D does not rise. If it does, all brokers below the highest number are included, too, and D is at most
  1 afterwards, or not larger than before.)
- The deletion of a topic takes at most one leadership more from one broker than from another, so k deletions raise D by
  at most k. The leaderships of new topics go to the brokers with the fewest, so D falls again.

*Followers.* The live brokers form a ring in which racks alternate and, within a rack, hosts alternate. Candidates are
taken in the order of the ring, beginning after the leader, from a start that shifts with each lap. The next follower is
the candidate

1. whose host has the fewest replicas of this partition: two replicas share a host only if every host has one;
2. that is live: a fenced broker is taken only if no live broker is on an unused host, or if there are too few live
   brokers;
3. whose rack has the fewest replicas of this partition;
4. that comes first on the ring.

A host is in one rack, so rule 1 never conflicts with rule 3. A broker without a host id counts as the only broker on
its host. All brokers without a rack count as one rack. (Kafka knows only racks; its placement follows rules 2 to 4.)

Brokers that are fenced or shutting down never lead a new partition, and are not in its first ISR.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from msgspec import Struct

from odradek_protocol.identity import BrokerId

Assignments = list[tuple[BrokerId, ...]]


class Candidate(Struct, frozen=True, kw_only=True, gc=False):
    """A broker that may get replicas. Both counts are numbers of partitions whose preferred leader is this broker."""

    broker_id: BrokerId
    host: str | None = None
    rack: str | None
    is_live: bool
    leader_count: int = 0
    topic_leader_count: int = 0  # only partitions of the topic that gets new partitions

    @property
    def host_key(self) -> str | BrokerId:
        """A key that is equal for brokers on the same host, and different for all others."""
        return self.broker_id if self.host is None else self.host


class PlacementError(ValueError):
    """Too few brokers are registered, or none is live. The message says which of the two."""


def place(
    partition_count: int, replication_factor: int, candidates: Iterable[Candidate], *, draw: int
) -> Assignments:
    """Return the replicas of each new partition of one topic, the preferred leader first.

    `draw` is a random number that decides between brokers that are equal by the rules.

    Raises:
        PlacementError: There are fewer brokers than replicas, or no broker is live.
    """
    brokers = sorted(candidates, key=lambda candidate: candidate.broker_id)
    live = [candidate for candidate in brokers if candidate.is_live]
    if len(brokers) < replication_factor:
        raise PlacementError(
            f"replication factor {replication_factor} needs {replication_factor} brokers, "
            f"but the number of registered brokers is {len(brokers)}"
        )
    if not live:
        raise PlacementError(
            "no broker is live: all brokers are fenced, or none has registered yet"
        )
    ring = _ring(live)
    fenced = [candidate for candidate in brokers if not candidate.is_live]
    # If leader counts are equal, the position on the ring decides, counted from a random start.
    turn = draw % len(ring)
    waiting = [
        (broker.topic_leader_count, broker.leader_count, (position - turn) % len(ring), position)
        for position, broker in enumerate(ring)
    ]
    heapq.heapify(waiting)
    laps = [0] * len(ring)
    hosts = len({candidate.host_key for candidate in brokers})
    racks = len({candidate.rack for candidate in brokers})
    placed: Assignments = []
    # The replicas for each combination of the leader's position on the ring and the shift of the followers.
    chosen: dict[tuple[int, int], tuple[BrokerId, ...]] = {}
    for _ in range(partition_count):
        of_topic, of_cluster, tie, position = waiting[0]
        heapq.heapreplace(waiting, (of_topic + 1, of_cluster + 1, tie, position))
        shift = (draw + laps[position]) % max(1, len(ring) - 1)
        laps[position] += 1
        replicas = chosen.get((position, shift))
        if replicas is None:
            followers = ring[position + 1 :] + ring[:position]
            others = [*followers[shift:], *followers[:shift], *fenced]
            replicas = _chosen(ring[position], others, replication_factor, hosts=hosts, racks=racks)
            chosen[position, shift] = replicas
        placed.append(replicas)
    return placed


def _ring(live: Sequence[Candidate]) -> list[Candidate]:
    """Return the brokers in an order in which racks alternate and, within a rack, hosts alternate."""
    racks: dict[str, dict[str | BrokerId, list[Candidate]]] = {}
    for candidate in live:
        hosts = racks.setdefault(candidate.rack or "", {})
        hosts.setdefault(candidate.host_key, []).append(candidate)
    return _alternating([_alternating(racks[rack].values()) for rack in sorted(racks)])


def _alternating(rows: Iterable[Sequence[Candidate]]) -> list[Candidate]:
    """Return the first item of each row, then the second item of each row, and so on."""
    columns = zip_longest(*rows)
    return [candidate for column in columns for candidate in column if candidate is not None]


def _chosen(
    leader: Candidate,
    others: Sequence[Candidate],
    replication_factor: int,
    *,
    hosts: int,
    racks: int,
) -> tuple[BrokerId, ...]:
    """Choose followers from `others`, which are in ring order, by the rules of this module. Return the leader and
    the followers.

    `hosts` and `racks` say how many hosts and racks all brokers have together.
    """
    replicas = [leader]
    remaining = list(others)
    on_host = Counter([leader.host_key])
    in_rack = Counter([leader.rack])
    while remaining and len(replicas) < replication_factor:
        # No candidate can have a better rank than this, so the search ends at the first candidate with this rank.
        ideal = (
            0 if len(on_host) < hosts else min(on_host.values()),
            False,
            0 if len(in_rack) < racks else min(in_rack.values()),
        )
        best, best_rank = 0, None
        for index, candidate in enumerate(remaining):
            rank = (
                on_host[candidate.host_key],
                not candidate.is_live,
                in_rack[candidate.rack],
            )
            if best_rank is None or rank < best_rank:
                best, best_rank = index, rank
                if rank == ideal:
                    break
        follower = remaining.pop(best)
        on_host[follower.host_key] += 1
        in_rack[follower.rack] += 1
        replicas.append(follower)
    return tuple(candidate.broker_id for candidate in replicas)
