"""Balances replicas over brokers with as few moves as possible.

Each step moves one replica from the broker with the most to the broker with the fewest, until they differ by at most
one. A replica keeps its place in the list of its partition (the first is the preferred leader). No step puts two
replicas of a partition on one broker, or into one rack if they were in two. Then leaders are balanced by swapping the
first replica with another one of the same partition, which copies nothing.
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
    """The partitions that must change, with their new replicas, which are on `brokers` only.

    Raises:
        ValueError: a partition has more replicas than there are brokers.
    """
    rack_of = racks or {}
    plan = {key: tuple(assigned) for key, assigned in replicas.items()}
    for key, assigned in plan.items():
        if len(assigned) > len(brokers):
            raise ValueError(
                f"{key} has {len(assigned)} replicas, and there are {len(brokers)} brokers"
            )
    loads = Counter(dict.fromkeys(brokers, 0))
    for assigned in plan.values():
        loads.update(broker for broker in assigned if broker in loads)
    for key, assigned in plan.items():
        for source in [broker for broker in assigned if broker not in loads]:
            free = [broker for broker in brokers if broker not in plan[key]]
            fitting = [b for b in free if _keeps_racks(plan[key], source, b, rack_of)] or free
            target_id = min(fitting, key=lambda broker: (loads[broker], broker))
            plan[key] = _replaced(plan[key], source, target_id)
            loads[target_id] += 1
    while (move := _next_move(plan, loads, rack_of)) is not None:
        key, source_id, target_id = move
        plan[key] = _replaced(plan[key], source_id, target_id)
        loads[source_id] -= 1
        loads[target_id] += 1
    _even_out_leaders(plan, brokers)
    return {key: assigned for key, assigned in plan.items() if assigned != tuple(replicas[key])}


def _next_move(
    plan: Mapping[Key, Replicas], loads: Counter[int], racks: Mapping[int, str]
) -> tuple[Key, int, int] | None:
    """The possible step between the two brokers that differ most; None if the brokers are balanced."""
    ordered = sorted(loads, key=lambda broker: (loads[broker], broker))
    pairs = [(source_id, target_id) for source_id in reversed(ordered) for target_id in ordered]
    pairs.sort(key=lambda pair: loads[pair[1]] - loads[pair[0]])
    for source_id, target_id in pairs:
        if loads[source_id] - loads[target_id] < 2:
            return None
        for key, assigned in plan.items():
            if (
                source_id in assigned
                and target_id not in assigned
                and _keeps_racks(assigned, source_id, target_id, racks)
            ):
                return key, source_id, target_id
    return None


def _keeps_racks(
    assigned: Replicas, source_id: int, target_id: int, racks: Mapping[int, str]
) -> bool:
    def count(members: Replicas) -> int:
        return len({racks.get(broker, f"broker {broker}") for broker in members})

    return count(_replaced(assigned, source_id, target_id)) >= count(assigned)


def _replaced(assigned: Replicas, source_id: int, target_id: int) -> Replicas:
    return tuple(target_id if broker == source_id else broker for broker in assigned)


def _even_out_leaders(plan: dict[Key, Replicas], brokers: Sequence[int]) -> None:
    leads = Counter(dict.fromkeys(brokers, 0))
    leads.update(assigned[0] for assigned in plan.values() if assigned)
    is_even = False
    while not is_even:  # one swap may enable another; each one brings two brokers closer
        is_even = True
        for key, assigned in plan.items():
            least = min(assigned, key=lambda broker: leads[broker], default=None)
            if least is None or leads[assigned[0]] - leads[least] < 2:
                continue
            is_even = False
            leads[assigned[0]] -= 1
            leads[least] += 1
            plan[key] = (least, *(broker for broker in assigned if broker != least))
