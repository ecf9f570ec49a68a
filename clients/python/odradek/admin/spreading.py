"""Balances replicas across brokers with as few moves as possible.

First, replicas on brokers that are not in the given list are moved to brokers in the list. Then, while one host has at
least two more replicas of a partition than another host, one of these replicas is moved to the other host. Then each
step moves one replica from the broker with the most replicas to the broker with the fewest, until their numbers of
replicas differ by at most one. A moved replica takes the position of the old one in the replica list of its partition.
After the first step, no step reduces the number of brokers, hosts or racks that have replicas of a partition. At the
end, leaders are balanced by moving another replica to the front of a partition's replica list, which copies no data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key")
Replicas = tuple[int, ...]


def spread(
    replicas: Mapping[Key, Sequence[int]],
    brokers: Sequence[int],
    racks: Mapping[int, str] | None = None,
    hosts: Mapping[int, str] | None = None,
) -> dict[Key, Replicas]:
    """Return the partitions that must change, with their new replicas, which are all on `brokers`.

    `racks` and `hosts` map a broker to its rack and host. A broker that is missing in one of these maps is assumed to
    be alone in its rack or on its host.

    Raises:
        ValueError: a partition has more replicas than there are brokers.
    """
    places = _Places(hosts or {}, racks or {})
    host_of = {broker: places.host(broker) for broker in brokers}
    plan = {key: tuple(assigned) for key, assigned in replicas.items()}
    for key, assigned in plan.items():
        if len(assigned) > len(brokers):
            raise ValueError(
                f"{key} has {len(assigned)} replicas, but there are only {len(brokers)} brokers"
            )
    loads = Counter(dict.fromkeys(brokers, 0))
    for assigned in plan.values():
        loads.update(broker for broker in assigned if broker in loads)
    for key, assigned in plan.items():
        for source in [broker for broker in assigned if broker not in loads]:
            free = [broker for broker in brokers if broker not in plan[key]]
            fitting = [b for b in free if places.are_kept(plan[key], source, b)] or free
            target_id = min(fitting, key=lambda broker: (loads[broker], broker))
            plan[key] = _replaced(plan[key], source, target_id)
            loads[target_id] += 1
    for key in plan:
        while shares_a_host(plan[key], host_of):
            plan[key] = _moved_apart(plan[key], host_of, loads)
    while (move := _next_move(plan, loads, places)) is not None:
        key, source_id, target_id = move
        plan[key] = _replaced(plan[key], source_id, target_id)
        loads[source_id] -= 1
        loads[target_id] += 1
    _even_out_leaders(plan, brokers)
    return {key: assigned for key, assigned in plan.items() if assigned != tuple(replicas[key])}


def _next_move(
    plan: Mapping[Key, Replicas], loads: Counter[int], places: _Places
) -> tuple[Key, int, int] | None:
    """Return the next move as (partition, source, target), between the two brokers whose replica counts differ most
    among those that allow a move. None: the brokers are balanced.
    """
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
                and places.are_kept(assigned, source_id, target_id)
            ):
                return key, source_id, target_id
    return None


@dataclass(frozen=True, slots=True)
class _Places:
    """The hosts and racks of the brokers."""

    hosts: Mapping[int, str]
    racks: Mapping[int, str]

    def host(self, broker: int) -> str | int:
        return self.hosts.get(broker, broker)

    def are_kept(self, assigned: Replicas, source_id: int, target_id: int) -> bool:
        """Return whether a move leaves a partition on at least as many hosts and in at least as many racks as
        before.
        """
        after = _replaced(assigned, source_id, target_id)
        return len(set(map(self.host, after))) >= len(set(map(self.host, assigned))) and len(
            {self.racks.get(broker, broker) for broker in after}
        ) >= len({self.racks.get(broker, broker) for broker in assigned})


def shares_a_host(replicas: Sequence[int], host_of: Mapping[int, str | int]) -> bool:
    """Return whether the replicas of a partition could be spread better: one host has at least two more of them than
    another host, which has a broker without a replica.
    """
    on_host = Counter(dict.fromkeys(host_of.values(), 0))
    on_host.update(host_of.get(broker, broker) for broker in replicas)
    free = {host_of[broker] for broker in host_of if broker not in replicas}
    return max(on_host.values()) > min((on_host[host] for host in free), default=len(replicas)) + 1


def _moved_apart(
    assigned: Replicas, host_of: Mapping[int, str | int], loads: Counter[int]
) -> Replicas:
    """Return the replicas after a move of one replica: from the host with the most replicas of the partition to the
    least loaded broker on the host with the fewest.
    """
    on_host = Counter(host_of[broker] for broker in assigned)
    source_id = max(assigned, key=lambda broker: (on_host[host_of[broker]], assigned.index(broker)))
    free = [broker for broker in host_of if broker not in assigned]
    target_id = min(free, key=lambda broker: (on_host[host_of[broker]], loads[broker], broker))
    loads[source_id] -= 1
    loads[target_id] += 1
    return _replaced(assigned, source_id, target_id)


def _replaced(assigned: Replicas, source_id: int, target_id: int) -> Replicas:
    return tuple(target_id if broker == source_id else broker for broker in assigned)


def _even_out_leaders(plan: dict[Key, Replicas], brokers: Sequence[int]) -> None:
    leads = Counter(dict.fromkeys(brokers, 0))
    leads.update(assigned[0] for assigned in plan.values() if assigned)
    is_even = False
    # A change of one leader may enable another. The loop ends, because each change makes the leader counts of two
    # brokers more equal.
    while not is_even:
        is_even = True
        for key, assigned in plan.items():
            least = min(assigned, key=lambda broker: leads[broker], default=None)
            if least is None or leads[assigned[0]] - leads[least] < 2:
                continue
            is_even = False
            leads[assigned[0]] -= 1
            leads[least] += 1
            plan[key] = (least, *(broker for broker in assigned if broker != least))
