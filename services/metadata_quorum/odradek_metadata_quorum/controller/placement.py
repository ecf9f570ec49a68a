"""The replicas of new partitions: leaders spread evenly, followers on other hosts and in other racks.

*Leaders.* Each partition prefers as its leader the live broker that leads the fewest partitions of its topic; among
these, the one that the fewest partitions of the cluster prefer. So with each *lap* around all brokers a new topic
gives every broker one leadership. Only the last lap may be partial; it goes to the brokers that lead the fewest
partitions. What follows, as long as the same brokers are live:

- Within a topic that was created here, no broker leads more than one partition more than another.
- Creating topics keeps the difference D between the brokers that lead most and least at 1 or below, however the
  partitions are divided into topics and requests. (Full laps change no difference. A partial lap raises the brokers
  that lead least: if it does not reach a broker that leads most, D does not rise; if it does, every broker below the
  most was raised, too, and D is at most 1 afterwards, or as large as before.)
- A topic that is deleted takes at most one leadership more from one broker than from another, so k deletions raise D by
  at most k. Topics created afterwards go to the brokers that lead least, and D falls again.

*Followers.* The live brokers are ordered in a ring, in which racks alternate, and hosts within a rack. Followers are
the next ones after the leader, from a start that shifts with each lap. Of several that could come next, the one wins
that has

1. the fewest replicas of this partition on its host: two replicas share a host only when every host has one;
2. a live process: a fenced broker comes in when only it is on an unused host, or there are too few live brokers;
3. the fewest replicas of this partition in its rack;
4. the first place on the ring.

A host lies in one rack, so rule 1 never conflicts with rule 3. Brokers without a host are hosts of their own, and
brokers without a rack are one rack. (Kafka knows racks only; its placement is like this one with rules 2 to 4.)

Fenced brokers and those in shutdown never lead a new partition, and do not begin in its ISR.
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
    """A broker that may get replicas. Its two counts are of partitions whose preferred leader it is."""

    broker_id: BrokerId
    host: str | None = None
    rack: str | None
    is_live: bool
    leader_count: int = 0
    topic_leader_count: int = 0  # how many partitions of the topic in question the broker leads

    @property
    def host_key(self) -> str | BrokerId:
        """A key that is equal for brokers on the same host."""
        return self.broker_id if self.host is None else self.host


class PlacementError(ValueError):
    """There are too few brokers; the message says how many are needed and how many exist."""


def place(
    partition_count: int, replication_factor: int, candidates: Iterable[Candidate], *, draw: int
) -> Assignments:
    """Return the replicas of each new partition of one topic, the preferred leader first.

    `draw` is a random number; it breaks ties.

    Raises:
        PlacementError: there are fewer brokers than replicas, or none that is live.
    """
    brokers = sorted(candidates, key=lambda candidate: candidate.broker_id)
    live = [candidate for candidate in brokers if candidate.is_live]
    if len(brokers) < replication_factor:
        raise PlacementError(
            f"replication factor {replication_factor} needs {replication_factor} brokers, "
            f"but the number of registered ones is {len(brokers)}"
        )
    if not live:
        raise PlacementError("no broker is live: all are fenced, or none has registered yet")
    ring = _ring(live)
    fenced = [candidate for candidate in brokers if not candidate.is_live]
    # If leader counts are equal, the place on the ring decides, counted from a random start.
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
    # The replicas of each combination of the leader's place on the ring and the shift of the followers.
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
    """Order the brokers so that racks alternate, and hosts within a rack."""
    racks: dict[str, dict[str | BrokerId, list[Candidate]]] = {}
    for candidate in live:
        hosts = racks.setdefault(candidate.rack or "", {})
        hosts.setdefault(candidate.host_key, []).append(candidate)
    return _alternating([_alternating(racks[rack].values()) for rack in sorted(racks)])


def _alternating(rows: Iterable[Sequence[Candidate]]) -> list[Candidate]:
    """Return the first item of each row, then the second of each row, and so on."""
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
    """Return the leader, followed by the followers that the module's rules choose from the other brokers. `hosts` and
    `racks` are the numbers of different hosts and racks of all brokers.
    """
    replicas = [leader]
    remaining = list(others)
    on_host = Counter([leader.host_key])
    in_rack = Counter([leader.rack])
    while remaining and len(replicas) < replication_factor:
        # No candidate can be better than this, so the search may end at the first one that is equal.
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
