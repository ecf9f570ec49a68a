"""Replicas move to new brokers and away from old ones, a few at a time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.admin.spreading import shares_a_host, spread


def test_a_new_broker_gets_its_share_with_as_few_moves_as_that_takes() -> None:
    before = {n: ((n % 3) + 1, (n + 1) % 3 + 1, (n + 2) % 3 + 1) for n in range(12)}
    after = spread(before, [1, 2, 3, 4])
    moved = sum(len(set(found) - set(before[key])) for key, found in after.items())
    assert moved == 9, "36 replicas on 4 brokers"
    whole = before | after
    assert Counter(b for found in whole.values() for b in found) == {1: 9, 2: 9, 3: 9, 4: 9}
    leads = Counter(found[0] for found in whole.values())
    assert max(leads.values()) - min(leads.values()) <= 1


def test_a_broker_that_shall_go_is_left() -> None:
    after = spread({"a": (1, 2), "b": (2, 3), "c": (3, 1)}, [1, 2])
    assert {key: set(found) for key, found in after.items()} == {"b": {1, 2}, "c": {1, 2}}


def test_what_is_even_stays() -> None:
    assert spread({0: (1, 2), 1: (2, 3), 2: (3, 1)}, [1, 2, 3]) == {}


def test_leaderships_are_even_at_once() -> None:
    """Before, `odradek cluster spread` found further changes when it was run a second time."""
    before = {0: (3, 4), 1: (2, 3), 2: (1, 2), 3: (1, 2), 4: (2, 4)}
    after = before | spread(before, [1, 2, 3, 4])
    assert spread(after, [1, 2, 3, 4]) == {}


def test_replicas_do_not_come_together_in_a_rack() -> None:
    racks = {1: "a", 2: "b", 3: "a", 4: "b"}
    before = dict.fromkeys(range(8), (1, 2))
    after = before | spread(before, [1, 2, 3, 4], racks)
    assert all(len({racks[b] for b in found}) == 2 for found in after.values())
    assert Counter(b for found in after.values() for b in found) == {1: 4, 2: 4, 3: 4, 4: 4}


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(ValueError, match="3 replicas, but there are only 2 brokers"):
        spread({"a": (1, 2, 3)}, [1, 2])


@given(
    st.dictionaries(
        st.integers(0, 40), st.permutations([1, 2, 3, 4, 5]).map(lambda found: tuple(found[:3]))
    ),
    st.sets(st.integers(1, 8), min_size=3),
)
def test_every_partition_keeps_its_number_of_distinct_replicas(
    before: dict[int, tuple[int, ...]], brokers: set[int]
) -> None:
    after = before | spread(before, sorted(brokers))
    for key, found in after.items():
        assert len(found) == len(set(found)) == len(before[key])
        assert set(found) <= brokers
    loads = Counter(dict.fromkeys(brokers, 0))
    loads.update(b for found in after.values() for b in found)
    assert max(loads.values()) - min(loads.values()) <= 1
    assert spread(after, sorted(brokers)) == {}


def numbers_of(
    plan: dict[tuple[int, int], tuple[int, ...]], brokers: set[int], topic: int | None = None
) -> Counter[int]:
    """Return how many replicas each broker has: of this topic, or of all topics."""
    numbers = Counter(dict.fromkeys(brokers, 0))
    for key, found in plan.items():
        if topic in (None, key[0]):
            numbers.update(found)
    return numbers


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 4), st.integers(0, 10)),
        st.permutations([1, 2, 3, 4, 5]).map(lambda found: tuple(found[:3])),
    ),
    st.sets(st.integers(1, 8), min_size=3),
)
def test_each_topic_is_balanced_and_all_together(
    before: dict[tuple[int, int], tuple[int, ...]], brokers: set[int]
) -> None:
    after = before | spread(before, sorted(brokers), topic_of=lambda key: key[0])
    for topic in (None, *{key[0] for key in before}):
        numbers = numbers_of(after, brokers, topic)
        assert max(numbers.values()) - min(numbers.values()) <= 1, topic
    assert all(len(set(found)) == 3 for found in after.values())
    assert spread(after, sorted(brokers), topic_of=lambda key: key[0]) == {}


def test_a_small_topic_moves_to_a_new_broker_beside_a_large_one() -> None:
    """Before, only replicas of the large topic were moved to the new broker."""
    before = {("large", n): (n % 3 + 1, (n + 1) % 3 + 1, (n + 2) % 3 + 1) for n in range(50)}
    before |= {("small", n): (n % 3 + 1, (n + 1) % 3 + 1, (n + 2) % 3 + 1) for n in range(6)}
    after = before | spread(before, [1, 2, 3, 4], topic_of=lambda key: key[0])
    on_the_new = Counter(key[0] for key, found in after.items() if 4 in found)
    assert on_the_new["small"] in (4, 5)
    assert sum(on_the_new.values()) == 42
    leads = Counter((key[0], found[0]) for key, found in after.items())
    assert {leads["small", broker] for broker in (1, 2, 3, 4)} == {1, 2}
    totals = Counter(found[0] for found in after.values())
    assert set(totals.values()) == {14}


def test_replicas_that_share_a_host_move_apart() -> None:
    hosts = {1: "a", 2: "a", 3: "b", 4: "b"}
    before: dict[int, tuple[int, ...]] = dict.fromkeys(range(8), (1, 2))
    after = before | spread(before, [1, 2, 3, 4], hosts=hosts)
    assert all(len({hosts[b] for b in found}) == 2 for found in after.values())
    assert Counter(b for found in after.values() for b in found) == {1: 4, 2: 4, 3: 4, 4: 4}


@given(
    st.dictionaries(
        st.integers(0, 20), st.permutations(range(1, 7)).map(lambda found: tuple(found[:3]))
    ),
    st.lists(st.integers(1, 4), min_size=6, max_size=6),
)
def test_a_spread_leaves_no_two_replicas_on_one_host_while_another_has_none(
    before: dict[int, tuple[int, ...]], numbers: list[int]
) -> None:
    hosts = {broker: f"h{number}" for broker, number in enumerate(numbers, start=1)}
    after = before | spread(before, list(hosts), hosts=hosts)
    for found in after.values():
        assert len(set(found)) == 3
        assert not shares_a_host(found, hosts)
        assert len({hosts[b] for b in found}) == min(3, len(set(numbers)))
