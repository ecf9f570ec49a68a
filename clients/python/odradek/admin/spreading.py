"""Balances replicas across brokers with as few moves as possible.

First, replicas on brokers that are not in the given list are moved to brokers in the list. Then, while one host has at
least two more replicas of a partition than another host, one of these replicas is moved to the other host. Then each
topic is balanced: each step moves one replica of the topic from the broker with the most of them to the broker with the
fewest, until their numbers differ by at most one or no such move is allowed. At last the brokers are balanced in the
same way, by moves that leave each topic as balanced as it is. A moved replica takes the position of the old one in the
replica list of its partition. After the first step, no step reduces the number of brokers, hosts or racks that have
replicas of a partition, or spreads them less evenly over the hosts. At the end, leaders are balanced, again within each
topic and then in total, by moving another replica to the front of a partition's replica list, which copies no data.
Only single changes of leaders are tried, so the numbers of leaders may differ by more than one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

Key = TypeVar("Key")
Replicas = tuple[int, ...]


def spread(
    replicas: Mapping[Key, Sequence[int]],
    brokers: Sequence[int],
    racks: Mapping[int, str] | None = None,
    hosts: Mapping[int, str] | None = None,
    *,
    topic_of: Callable[[Key], Hashable] = lambda _: "",
) -> dict[Key, Replicas]:
    """Return the partitions that must change, with their new replicas, which are all on `brokers`.

    `racks` and `hosts` map a broker to its rack and host. A broker that is missing in one of these maps is assumed to
    be alone in its rack or on its host. `topic_of` returns the topic of a partition; by default all belong to one.

    Raises:
        ValueError: a partition has more replicas than there are brokers.
    """
    places = _Places(hosts or {}, racks or {}, brokers)
    host_of = places.host_of
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
    by_topic: defaultdict[Hashable, list[Key]] = defaultdict(list)
    for key in plan:
        by_topic[topic_of(key)].append(key)
    _even_out_replicas(plan, by_topic.values(), loads, places)
    _even_out_leaders(plan, by_topic.values(), brokers)
    return {key: assigned for key, assigned in plan.items() if assigned != tuple(replicas[key])}


def _even_out_replicas(
    plan: dict[Key, Replicas],
    topics: Collection[Sequence[Key]],
    loads: Counter[int],
    places: _Places,
) -> None:
    """Balance the replicas of each topic, and then those of all topics. `loads` has the replicas of each broker.

    A move in the second part may make another one possible within a topic, so both parts are repeated until nothing
    moves. This ends: moves within a topic make it more balanced, and the other moves make the brokers more balanced and
    no topic less.
    """
    of_topic = {
        key: topic_loads
        for keys in topics
        for topic_loads in [_loads_of((plan[key] for key in keys), loads)]
        for key in keys
    }

    def move_all(keys: Sequence[Key], balanced: Counter[int]) -> bool:
        has_moved = False
        while (move := _next_move(plan, keys, balanced, of_topic, loads, places)) is not None:
            key, source_id, target_id = move
            plan[key] = _replaced(plan[key], source_id, target_id)
            for counter in (of_topic[key], loads):
                counter[source_id] -= 1
                counter[target_id] += 1
            has_moved = True
        return has_moved

    _even_out(move_all, topics, of_topic, loads)


def _even_out(
    change_all: Callable[[Sequence[Key], Counter[int]], bool],
    topics: Collection[Sequence[Key]],
    of_topic: Mapping[Key, Counter[int]],
    totals: Counter[int],
) -> None:
    """Balance each topic, and then all topics together, until nothing changes.

    `change_all` makes all changes of the given partitions that balance the given counter, and returns whether it made
    any. `of_topic` has the counter of each partition's topic, and `totals` is the counter of all topics.
    """
    while True:
        for keys in topics:
            change_all(keys, of_topic[keys[0]])
        if not change_all(list(of_topic), totals):
            return


def _loads_of(assignments: Iterator[Replicas], brokers: Collection[int]) -> Counter[int]:
    loads = Counter(dict.fromkeys(brokers, 0))
    for assigned in assignments:
        loads.update(assigned)
    return loads


def _next_move(
    plan: Mapping[Key, Replicas],
    keys: Sequence[Key],
    balanced: Counter[int],
    of_topic: Mapping[Key, Counter[int]],
    loads: Counter[int],
    places: _Places,
) -> tuple[Key, int, int] | None:
    """Return the next move of one of the partitions `keys` as (partition, source, target). It is between the two
    brokers whose numbers in `balanced` differ most among those that allow a move; if several do, between those whose
    `loads` differ most. No move makes a topic less balanced. None: nothing can be balanced further.
    """
    ordered = sorted(balanced, key=lambda broker: (balanced[broker], loads[broker], broker))
    pairs = [
        (source_id, target_id)
        for source_id in reversed(ordered)
        for target_id in ordered
        if balanced[source_id] - balanced[target_id] >= 2
    ]
    pairs.sort(
        key=lambda pair: (balanced[pair[1]] - balanced[pair[0]], loads[pair[1]] - loads[pair[0]])
    )
    for source_id, target_id in pairs:
        for key in keys:
            assigned = plan[key]
            if (
                source_id in assigned
                and target_id not in assigned
                and of_topic[key][source_id] > of_topic[key][target_id]
                and places.are_kept(assigned, source_id, target_id)
            ):
                return key, source_id, target_id
    return None


@dataclass(frozen=True)
class _Places:
    """The hosts and racks of the brokers. `brokers` are those to which replicas may be moved."""

    hosts: Mapping[int, str]
    racks: Mapping[int, str]
    brokers: Sequence[int]

    def host(self, broker: int) -> str | int:
        return self.hosts.get(broker, broker)

    @cached_property
    def host_of(self) -> Mapping[int, str | int]:
        """The host of each broker in `brokers`."""
        return {broker: self.host(broker) for broker in self.brokers}

    def are_kept(self, assigned: Replicas, source_id: int, target_id: int) -> bool:
        """Return whether a move leaves a partition on at least as many hosts and in at least as many racks as before,
        and spread as evenly over the hosts.
        """
        after = _replaced(assigned, source_id, target_id)
        return (
            len(set(map(self.host, after))) >= len(set(map(self.host, assigned)))
            and len({self.racks.get(broker, broker) for broker in after})
            >= len({self.racks.get(broker, broker) for broker in assigned})
            and (
                not self.hosts
                or not shares_a_host(after, self.host_of)
                or shares_a_host(assigned, self.host_of)
            )
        )


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


def _even_out_leaders(
    plan: dict[Key, Replicas], topics: Collection[Sequence[Key]], brokers: Sequence[int]
) -> None:
    """Balance the leaders of each topic, and then those of all topics, as `_even_out_replicas` does with replicas."""
    leads = _loads_of(((assigned[0],) for assigned in plan.values() if assigned), brokers)
    of_topic = {
        key: topic_leads
        for keys in topics
        for topic_leads in [_loads_of(((plan[key][0],) for key in keys if plan[key]), brokers)]
        for key in keys
    }

    def swap_all(keys: Sequence[Key], balanced: Counter[int]) -> bool:
        """Change leaders until each has at most one more than any other replica of its partitions has. A change of one
        leader may enable another.
        """
        has_swapped, is_even = False, False
        while not is_even:
            is_even = True
            for key in keys:
                leader, *followers = plan[key] or (None,)
                own = of_topic[key]
                fitting = [b for b in followers if leader is not None and own[leader] > own[b]]
                least = min(fitting, key=lambda b: (balanced[b], leads[b]), default=None)
                if leader is None or least is None or balanced[leader] - balanced[least] < 2:
                    continue
                for counter in (own, leads):
                    counter[leader] -= 1
                    counter[least] += 1
                plan[key] = (least, *(broker for broker in plan[key] if broker != least))
                is_even, has_swapped = False, True
        return has_swapped

    _even_out(swap_all, topics, of_topic, leads)
