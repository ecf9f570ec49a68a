"""Each row of the table in docs/errors.md has a test: the error message names what is wrong and
what to do.

`pytest tests/e2e/test_error_table.py --write-errors` writes the table; without the option, the
tests compare it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.e2e.situations import SITUATIONS, Situation

DOCUMENT = Path(__file__).parents[2] / "docs/errors.md"
BEGIN, END = "<!-- errors -->\n", "<!-- end of errors -->\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Yield one controller and one broker that does not create topics automatically."""
    plan = ClusterPlan(brokers=1, controllers=1, settings=("auto.create.topics.enable=false",))
    with EmbeddedCluster(plan) as running:
        running.start()
        running.wait_ready()
        yield running


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_what_is_told_names_the_thing_and_the_way_out(
    cluster: EmbeddedCluster, situation: Situation
) -> None:
    output = situation.act(cluster)
    pattern = ".*".join(re.escape(part) for part in situation.message.split("..."))
    assert re.search(pattern, output, re.DOTALL), output
    assert "Traceback" not in output


def test_the_document_has_the_table(request: pytest.FixtureRequest) -> None:
    rows = ["| situation | error message |", "|---|---|"]
    rows += [f"| {row.name} | {_cell(row.message)} |" for row in SITUATIONS]
    table = "\n".join(rows) + "\n"
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    there, _, after = rest.partition(END)
    if request.config.getoption("--write-errors"):
        DOCUMENT.write_text(before + BEGIN + table + END + after)
    else:
        assert there == table, "pytest tests/e2e/test_error_table.py --write-errors writes it"


def _cell(message: str) -> str:
    return message.removeprefix("...").strip().replace("|", "\\|")
