"""Which brokers hold the replicas of new partitions: striped over racks, leaders balanced.

The live brokers are put on a ring on which racks alternate (r1 r2 r3 r1 r2 ...). Partition after
partition takes the next broker as its preferred leader, so within a topic no broker leads more than
one partition more than another. Followers are the next ones on the ring, from a start that shifts
with every lap, skipping racks that the partition already has until it has every rack, and brokers
that it already has always. The ring begins at the broker with the fewest leaderships (a draw breaks
ties), so that many topics of one partition spread too. (Kafka's AdminUtils; KRaft's
StripedReplicaPlacer draws the order of racks instead, which balances leaders only on average.)

Fenced brokers and those in shutdown hold replicas only if there are too few live ones, and never
lead. A replica on a fenced broker does not begin in the ISR.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from odradek_protocol.identity import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A broker that may take replicas. `leader_count`: how many partitions prefer it by now."""

    broker_id: BrokerId
    rack: str | None
    is_live: bool
    leader_count: int = 0


class PlacementError(ValueError):
    """There are too few brokers; the message says how many are wanted and there."""


def place(
    partition_count: int, replication_factor: int, candidates: Iterable[Candidate], *, draw: int
) -> list[tuple[BrokerId, ...]]:
    """The replicas of each new partition, preferred leader first.

    Raises:
        PlacementError: fewer brokers than replicas, or none that is live.
    """
    brokers = sorted(candidates, key=lambda candidate: candidate.broker_id)
    live = [candidate for candidate in brokers if candidate.is_live]
    if len(brokers) < replication_factor:
        raise PlacementError(
            f"replication factor {replication_factor} needs as many brokers, "
            f"{len(brokers)} are registered"
        )
    if not live:
        raise PlacementError("no broker is live: all are fenced, or none has registered yet")
    ring = _ring(live)
    start = _start(ring, draw)
    reserve = [] if len(live) >= replication_factor else [c for c in brokers if not c.is_live]
    placed = []
    for index in range(partition_count):
        lap, position = divmod(index, len(ring))
        at = (start + position) % len(ring)
        followers = ring[at + 1 :] + ring[:at]
        if followers:
            shift = (draw + lap) % len(followers)
            followers = followers[shift:] + followers[:shift]
        chosen = [ring[at]]
        _fill(chosen, followers, replication_factor)
        _fill(chosen, reserve, replication_factor)
        placed.append(tuple(candidate.broker_id for candidate in chosen))
    return placed


def _ring(live: Sequence[Candidate]) -> list[Candidate]:
    """The brokers so that racks alternate; those without a rack are one rack."""
    by_rack: dict[str, list[Candidate]] = {}
    for candidate in live:
        by_rack.setdefault(candidate.rack or "", []).append(candidate)
    racks = [by_rack[name] for name in sorted(by_rack)]
    longest = max(len(rack) for rack in racks)
    return [rack[i] for i in range(longest) for rack in racks if i < len(rack)]


def _start(ring: Sequence[Candidate], draw: int) -> int:
    fewest = min(candidate.leader_count for candidate in ring)
    positions = [i for i, c in enumerate(ring) if c.leader_count == fewest]
    return positions[draw % len(positions)]


def _fill(chosen: list[Candidate], others: Sequence[Candidate], replication_factor: int) -> None:
    """Add others, those of the rack that is used least first, in their order."""
    if len(chosen) == replication_factor:
        return
    rest = list(others)
    per_rack = Counter({candidate.rack: 0 for candidate in rest})
    per_rack.update(candidate.rack for candidate in chosen)
    while rest and len(chosen) < replication_factor:
        floor = min(per_rack.values())
        best = next((c for c in rest if per_rack[c.rack] == floor), None)
        if best is None:  # the least used rack has no broker left
            best = min(rest, key=lambda candidate: per_rack[candidate.rack])
        rest.remove(best)
        per_rack[best.rack] += 1
        chosen.append(best)
