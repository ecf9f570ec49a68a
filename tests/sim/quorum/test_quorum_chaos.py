"""Under random faults acknowledged entries are kept, voters agree, and each term has at most one leader."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.quorum.chaos import Chaos

QUICK_SEEDS = range(20)
LONG_SEEDS = range(20, 500)


@pytest.mark.parametrize("seed", QUICK_SEEDS)
def test_no_acknowledged_entry_is_lost_whatever_fails(seed: int) -> None:
    result = Chaos(seed).run()
    assert result.acknowledged > 300


@pytest.mark.parametrize("seed", [3, 11])
def test_five_voters_survive_the_same(seed: int) -> None:
    assert Chaos(seed, voters=5, duration_s=15.0).run().acknowledged > 100


def test_a_seed_is_one_history() -> None:
    first, second, other = (Chaos(seed, duration_s=10.0).run() for seed in (5, 5, 6))
    assert first == second
    assert first.trace != other.trace


def test_the_quick_seeds_together_reach_every_kind_of_fault() -> None:
    total: Counter[str] = Counter()
    for seed in QUICK_SEEDS:
        total.update(Chaos(seed, duration_s=12.0).run().counts)
    wanted = (
        "active",
        "snapshot installed",
        "power cut",
        "all crash",
        "kill",
        "cut",
        "one-way cut",
        "isolated",
        "hold",
        "wiped",
        "restart",
        "failed disk call",
        "frozen",
        "slow disks",
        "slow loop",
        "read",
        "refused read",
        "torn tail",
        "interrupted job",
        "restart on lost pages",
    )
    assert [what for what in wanted if not total[what]] == [], total


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_more_seeds() -> None:
    for seed in LONG_SEEDS:
        Chaos(seed).run()
