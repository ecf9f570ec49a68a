"""Every planted bug is found, by the seeds or by its directed schedule."""

from __future__ import annotations

import importlib

import pytest

from tests.sim.planted.bugs import BUGS
from tests.sim.planted.elsewhere import ELSEWHERE
from tests.sim.planted.schedules import SCHEDULES
from tests.sim.simulation import run_seed

OF_THE_LIST = {*range(1, 11), *range(14, 31)}  # 11-13 are in tests/sim/transactions
BY_CHANCE = [number for number, bug in BUGS.items() if not bug.is_rare]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", BY_CHANCE, ids=lambda n: BUGS[n].name)
def test_the_seeds_find_it(number: int) -> None:
    with BUGS[number].planted():
        assert any(run_seed(seed).violations for seed in BUGS[number].seeds_in_order)


def test_what_chance_rarely_meets_has_a_schedule() -> None:
    assert {number for number, bug in BUGS.items() if bug.is_rare} <= SCHEDULES.keys()


def test_every_bug_of_the_list_is_looked_for_somewhere() -> None:
    assert BUGS.keys() | ELSEWHERE.keys() >= OF_THE_LIST
    assert not BUGS.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("number", ELSEWHERE, ids=lambda n: ELSEWHERE[n].name)
def test_what_others_find_is_planted_there(number: int) -> None:
    found = ELSEWHERE[number]
    assert callable(getattr(importlib.import_module(found.module), found.plant))


def test_nothing_stays_planted() -> None:
    assert not run_seed(1).violations
