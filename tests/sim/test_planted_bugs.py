"""Every planted bug is found: by the seeds, or by the schedule made for it."""

from __future__ import annotations

import pytest

from tests.sim.planted.bugs import BUGS
from tests.sim.simulation import run_seed
from tests.sim.test_directed_schedules import SCHEDULES

SEEDS_MAX = 200
BY_CHANCE = [number for number, bug in BUGS.items() if not bug.is_rare]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", BY_CHANCE, ids=lambda n: BUGS[n].name)
def test_the_seeds_find_it(number: int) -> None:
    with BUGS[number].planted():
        assert any(run_seed(seed).violations for seed in range(SEEDS_MAX))


def test_what_chance_rarely_meets_has_a_schedule() -> None:
    assert {number for number, bug in BUGS.items() if bug.is_rare} <= SCHEDULES.keys()


def test_nothing_stays_planted() -> None:
    assert not run_seed(1).violations
