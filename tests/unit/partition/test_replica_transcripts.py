"""Runs each scenario of leader.txt and follower.txt, and compares the effects of each event with
the text.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek_broker.partition import events
from odradek_broker.partition.replica import Replica
from tests.unit.partition.story import replay, scenarios

STORIES = [
    (f"{path.stem}: {name}", lines)
    for path in sorted(Path(__file__).parent.glob("*.txt"))
    for name, lines in scenarios(path)
]


@pytest.mark.parametrize(("name", "lines"), STORIES, ids=[name for name, _ in STORIES])
def test_transcript(name: str, lines: list[str]) -> None:
    assert replay(lines) == lines, name


@pytest.mark.parametrize(("name", "lines"), STORIES, ids=[name for name, _ in STORIES])
def test_a_replica_that_waits_for_nothing_needs_no_ticks(name: str, lines: list[str]) -> None:
    """Brokers skip these ticks: for thousands of idle partitions they used a quarter of a core."""
    asleep: list[int] = []
    for number, line in enumerate(lines, 1):
        seen: list[tuple[Replica, int]] = []
        if not line.startswith("at "):
            continue
        # A replica of its own, which the ticks may change.
        replay(lines[:number], lambda replica, now_ms, seen=seen: seen.append((replica, now_ms)))
        if seen and not seen[-1][0].waits_for_time:
            replica, now_ms = seen[-1]
            asleep.append(now_ms)
            for passed_ms in (1, 1_000, 100_000):
                assert not replica.step(events.Tick(), now_ms + passed_ms), (name, now_ms)
    without_needless_ticks = [
        line for line in lines if not line.endswith(" tick") or int(line.split()[1]) not in asleep
    ]
    assert replay(without_needless_ticks) == [
        line for line in lines if line in without_needless_ticks
    ], name


def test_each_scenario_says_what_comes_of_it() -> None:
    assert all(any(line.startswith("  ") for line in lines) for _, lines in STORIES)
