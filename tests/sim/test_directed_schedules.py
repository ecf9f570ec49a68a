"""The schedules for planted bugs that random faults rarely find: each schedule passes, and fails with its
bug planted.
"""

from __future__ import annotations

import pytest

from tests.sim.invariants import InvariantBroken
from tests.sim.planted.bugs import BUGS
from tests.sim.planted.schedules import SCHEDULES


@pytest.mark.parametrize("number", SCHEDULES, ids=lambda n: BUGS[n].name)
def test_the_schedule_is_survived(number: int) -> None:
    SCHEDULES[number]()


@pytest.mark.parametrize("number", SCHEDULES, ids=lambda n: BUGS[n].name)
def test_the_schedule_finds_its_bug(number: int) -> None:
    with BUGS[number].planted(), pytest.raises((InvariantBroken, AssertionError)) as found:
        SCHEDULES[number]()
    assert "the schedule took too long" not in str(found.value)
    assert "the condition is still false" not in str(found.value)
