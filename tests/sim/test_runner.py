"""The runner reports which property a seed violated, and how to run the seed again."""

from __future__ import annotations

import io

from rich.console import Console

from tests.sim.__main__ import Summary, hunt, report
from tests.sim.planted.bugs import BUGS
from tests.sim.simulation import run_seed


def written() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=120), text


def test_a_failing_seed_is_named_with_the_way_to_repeat_it() -> None:
    summary = Summary()
    with BUGS[2].planted():
        summary.add(run_seed(7))
    console, text = written()
    report(summary, console, elapsed_s=1.0)
    assert not summary.is_good
    assert "seed 7 failed" in text.getvalue()
    assert "python -m tests.sim --seed 7" in text.getvalue()
    assert "I7" in text.getvalue()


def test_a_run_that_came_across_nothing_is_not_good() -> None:
    summary = Summary(seeds=50)
    assert "truncations" in summary.uncovered
    assert not summary.is_good


def test_a_seed_that_differs_from_itself_is_not_good() -> None:
    summary = Summary()
    summary.add(run_seed(1))
    assert summary.is_good
    summary.different.append(1)
    assert not summary.is_good


def test_the_hunt_tells_how_many_seeds_a_bug_needs() -> None:
    console, text = written()
    assert hunt([2], 3, console)
    assert "HW = leader's log end" in text.getvalue()
