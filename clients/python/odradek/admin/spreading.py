"""How replicas move so that every broker holds as many as the others, with as few moves as that takes.

One replica a step: from the broker that has most to the one that has least, until they differ by one at most. A
replica keeps its place in its partition's list (the first is the preferred leader), and no step puts two replicas of
a partition on one broker, nor into one rack if they were in two. Leaderships are then evened out by swapping the first
replica with another of the same partition, which copies nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key")
Replicas = tuple[int, ...]


def spread(
    replicas: Mapping[Key, Sequence[int]],
    brokers: Sequence[int],
    racks: Mapping[int, str] | None = None,
) -> dict[Key, Replicas]:
    """The partitions that change, with their new replicas; on `brokers` only.

    Raises:
        ValueError: fewer brokers than replicas of a partition.
    """
    known = racks or {}
    now = {key: tuple(found) for key, found in replicas.items()}
    for key, found in now.items():
        if len(found) > len(brokers):
            raise ValueError(
                f"{key} has {len(found)} replicas, and there are {len(brokers)} brokers"
            )
    loads = Counter(dict.fromkeys(brokers, 0))
    for found in now.values():
        loads.update(broker for broker in found if broker in loads)
    for key, found in now.items():
        for gone in [broker for broker in found if broker not in loads]:
            free = [broker for broker in brokers if broker not in now[key]]
            fitting = [b for b in free if _keeps_racks(now[key], gone, b, known)] or free
            taker = min(fitting, key=lambda broker: (loads[broker], broker))
            now[key] = _replaced(now[key], gone, taker)
            loads[taker] += 1
    while (move := _next_move(now, loads, known)) is not None:
        key, giver, taker = move
        now[key] = _replaced(now[key], giver, taker)
        loads[giver] -= 1
        loads[taker] += 1
    _even_out_leaders(now, brokers)
    return {key: found for key, found in now.items() if found != tuple(replicas[key])}


def _next_move(
    now: Mapping[Key, Replicas], loads: Counter[int], racks: Mapping[int, str]
) -> tuple[Key, int, int] | None:
    """The step between the two that differ most, of those that are possible."""
    ordered = sorted(loads, key=lambda broker: (loads[broker], broker))
    pairs = [(giver, taker) for giver in reversed(ordered) for taker in ordered]
    pairs.sort(key=lambda pair: loads[pair[1]] - loads[pair[0]])
    for giver, taker in pairs:
        if loads[giver] - loads[taker] < 2:
            return None
        for key, found in now.items():
            if giver in found and taker not in found and _keeps_racks(found, giver, taker, racks):
                return key, giver, taker
    return None


def _keeps_racks(found: Replicas, giver: int, taker: int, racks: Mapping[int, str]) -> bool:
    def count(members: Replicas) -> int:
        return len({racks.get(broker, f"broker {broker}") for broker in members})

    return count(_replaced(found, giver, taker)) >= count(found)


def _replaced(found: Replicas, giver: int, taker: int) -> Replicas:
    return tuple(taker if broker == giver else broker for broker in found)


def _even_out_leaders(now: dict[Key, Replicas], brokers: Sequence[int]) -> None:
    leads = Counter(dict.fromkeys(brokers, 0))
    leads.update(found[0] for found in now.values() if found)
    is_even = False
    while not is_even:  # a swap may make room for another; each brings two brokers closer
        is_even = True
        for key, found in now.items():
            least = min(found, key=lambda broker: leads[broker], default=None)
            if least is None or leads[found[0]] - leads[least] < 2:
                continue
            is_even = False
            leads[found[0]] -= 1
            leads[least] += 1
            now[key] = (least, *(broker for broker in found if broker != least))
