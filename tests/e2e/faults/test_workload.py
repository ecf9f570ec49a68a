"""The checker of the fault tests detects lost, duplicated and reordered records."""

from __future__ import annotations

import re

import pytest

from tests.e2e.faults.workload import Place, faults_of

ACKNOWLEDGED = {0: Place(0, 0), 1: Place(1, 0), 2: Place(0, 1), 3: Place(1, -1)}
INTACT = [(Place(0, 0), b"0"), (Place(0, 1), b"2"), (Place(1, 0), b"1"), (Place(1, 1), b"3")]


def test_an_intact_log_has_no_faults() -> None:
    assert faults_of(ACKNOWLEDGED, 4, [*INTACT, (Place(1, 2), b"probe 1")]) == []


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        (INTACT[:1] + INTACT[2:], "record 2, acknowledged at .* is lost"),
        ([*INTACT, (Place(1, 2), b"3")], "record 3 is doubled"),
        (
            [(Place(0, 0), b"2"), (Place(0, 1), b"0"), *INTACT[2:]],
            "record 0 at .* is out of order, after 2",
        ),
        ([(Place(0, 7), b"0"), *INTACT[1:]], "record 0, acknowledged at .* is at .*offset=7"),
        ([*INTACT, (Place(1, 2), b"9")], "record 9 at .* was never sent"),
    ],
)
def test_a_damaged_log_is_told_from_an_intact_one(
    read: list[tuple[Place, bytes]], fault: str
) -> None:
    assert any(re.search(fault, found) for found in faults_of(ACKNOWLEDGED, 4, read))
