"""Each scenario of leader.txt and follower.txt, replayed: the test reads as the story it tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.partition.story import replay, scenarios

STORIES = [
    (f"{path.stem}: {name}", lines)
    for path in sorted(Path(__file__).parent.glob("*.txt"))
    for name, lines in scenarios(path)
]


@pytest.mark.parametrize(("name", "lines"), STORIES, ids=[name for name, _ in STORIES])
def test_transcript(name: str, lines: list[str]) -> None:
    assert replay(lines) == lines, name


def test_each_scenario_says_what_comes_of_it() -> None:
    assert all(any(line.startswith("  ") for line in lines) for _, lines in STORIES)
