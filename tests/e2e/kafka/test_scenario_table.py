"""The table in docs/clients.md has every client and every scenario, and no cell that failed or was
not tested.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.e2e.kafka.lines import releases
from tests.e2e.kafka.scenarios import BEGIN, CANNOT, CLIENTS, END, SCENARIOS, Results, table

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[2] / "docs/clients.md"


def cells_with_tests() -> set[tuple[str, str]]:
    """Return the cells that the marks of all tests in this folder name."""
    cells = set()
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="scenario"), args=[client, *names]):
                    words = [ast.literal_eval(one) for one in (client, *names)]
                    cells |= {(words[0], name) for name in words[1:]}
    return cells


def test_every_cell_has_a_test_or_a_reason() -> None:
    everything = {(client, name) for client in CLIENTS for name in SCENARIOS}
    assert cells_with_tests() | CANNOT.keys() == everything
    assert not cells_with_tests() & CANNOT.keys()


def test_the_readmes_table_is_whole() -> None:
    _, _, rest = DOCUMENT.read_text().partition(BEGIN)
    text, end, _ = rest.partition(END)
    assert end, "the table's end is missing"
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()
    ]
    assert rows[0] == ["scenario", *CLIENTS.values()]
    assert [row[0] for row in rows[2:]] == list(SCENARIOS.values())
    for (name, title), row in zip(SCENARIOS.items(), rows[2:], strict=True):
        for client, cell in zip(CLIENTS, row[1:], strict=True):
            passes = cell.startswith("passes (")
            assert passes or cell == CANNOT.get((client, name)), f"{client}, {title}: {cell!r}"


def test_the_readmes_table_has_every_release_that_is_tried() -> None:
    _, _, rest = DOCUMENT.read_text().partition(releases.BEGIN)
    rows, end, _ = rest.partition(releases.END)
    assert end, "the table's end is missing"
    passed = releases.Outcomes()
    for client, tried in releases.RELEASES.items():
        for release in tried:
            passed.add(client, release, passed=True)
    assert rows.strip().splitlines() == releases.table(passed)


def test_a_release_that_fails_shows_in_the_table() -> None:
    outcomes = releases.Outcomes()
    outcomes.add("kafka-python", "2.0.2", passed=True)
    outcomes.add("kafka-python", "2.0.2", passed=False)
    [row] = [line for line in releases.table(outcomes) if line.startswith("| kafka-python |")]
    assert "1.4.7 was not run, 2.0.2 fails," in row
    with pytest.raises(AssertionError):
        outcomes.add("kafka-python", "0.1", passed=True)


def test_a_failure_shows_in_the_table() -> None:
    results = Results()
    results.add("kcat", ["headers"], passed=True)
    results.add("kcat", ["headers"], passed=False)
    [row] = [line for line in table(results) if line.startswith("| headers |")]
    assert "1 of 2 fail" in row
    with pytest.raises(AssertionError):
        results.add("netcat", ["headers"], passed=True)
