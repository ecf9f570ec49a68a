"""Writes docs/mechanisms.md: each mechanism of safety or limit that has a planted bug, and the test that finds it.

    python -m tests.tidy.mechanisms > docs/mechanisms.md

The rows come from the registries of the planted bugs, so the page cannot name a bug or a test that does not exist.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
HEAD = """# Mechanisms, planted bugs, and the tests that find them

A *planted bug* is a patch that switches one mechanism off. Every build plants each bug of this page and runs the named
test, which must fail. `python -m tests.tidy.mechanisms` writes this page from the registries of the bugs.
"""
REGISTRIES = (
    (
        "Limits of what one client can take",
        "tests.unit.security.test_planted_limit_bugs",
        "LIMITS",
    ),
    ("Log and disk", "tests.unit.log.test_planted_bugs", "NAMED"),
    ("Replication", "tests.unit.replication.test_planted_bugs", "NAMED"),
    ("Transactions at a partition", "tests.unit.partition.test_transaction_schedules", "SCHEDULES"),
    ("Transactions at their coordinator", "tests.unit.transactions.test_planted_bugs", "NAMED"),
    (
        "Transactions between brokers",
        "tests.unit.transactions.test_planted_runtime_bugs",
        "BUGS",
    ),
    ("Hanging transactions", "tests.unit.replication.test_hanging_transactions", "NAMED"),
    ("Reads of committed records", "tests.unit.replication.test_committed_fetches", "NAMED"),
    ("Offsets of groups in transactions", "tests.unit.groups.test_planted_bugs", "NAMED"),
    ("Metadata quorum", "tests.unit.quorum.test_planted_bugs", "DIRECTED"),
    ("Disk of the metadata quorum", "tests.unit.quorum.test_planted_disk_bugs", "DIRECTED"),
    ("Features, identity and placement", "tests.unit.controller.test_planted_feature_bugs", "BUGS"),
)
ALONE = {
    "an unfinished frame beyond the share stays in memory": (
        "tests/unit/kafka/test_frame_file.py",
        "test_frames_beyond_the_share_stay_in_memory",
    ),
    "an image keeps a part of an entry that does not fit": (
        "tests/integration/broker/test_hostile_controller.py",
        "test_a_planted_bug_in_the_refusal_is_found",
    ),
}
"""Bugs that are planted in the same file as the test that finds them."""


class Row(NamedTuple):
    """One bug, and the file and function of the test that finds it."""

    bug: str
    file: str
    test: str


def rows(module: str, registry: str) -> Iterator[Row]:
    """Yield the rows of one registry; its entries end with the bug and the test."""
    for entry in getattr(importlib.import_module(module), registry):
        bug, test = entry[-2:]
        while isinstance(test, functools.partial):
            test = test.func
        file = inspect.getmodule(test).__name__.replace(".", "/") + ".py"  # type: ignore[union-attr]
        yield Row(words(bug), file, test.__name__)


def words(bug: Any) -> str:
    name: str = bug.__name__
    return name.strip("_").replace("_", " ")


def simulated() -> Iterator[Row]:
    """Yield the bugs that the simulator finds, by random faults or by a schedule."""
    from tests.sim.planted.bugs import BUGS

    for number, bug in sorted(BUGS.items()):
        file = (
            "tests/sim/test_directed_schedules.py"
            if bug.is_rare
            else "tests/sim/test_planted_bugs.py"
        )
        yield Row(f"{number}: {bug.name}", file, "" if bug.is_rare else "test_the_seeds_find_it")


def simulated_transactions() -> Iterator[Row]:
    """Yield the bugs that seeds with transactional clients find."""
    from tests.sim.transactions.planted_bugs import FOUND_BY_SEEDS

    for number, bug, _ in FOUND_BY_SEEDS:
        file = "tests/sim/transactions/test_planted_transaction_bugs.py"
        yield Row(f"{number}: {words(bug)}", file, "test_the_seeds_find_it")


def page() -> str:
    """Return the page."""
    sections = [(title, list(rows(module, registry))) for title, module, registry in REGISTRIES]
    sections[0][1].extend(Row(bug, *place) for bug, place in ALONE.items())
    sections.append(("The cluster, in the simulator", list(simulated())))
    sections.append(("Transactions, in the simulator", list(simulated_transactions())))
    parts = [HEAD]
    for title, section in sections:
        parts.append(f"\n## {title}\n\n| planted bug | test that finds it |\n|---|---|\n")
        parts += [f"| {row.bug} | {_place(row)} |\n" for row in dict.fromkeys(section)]
    return "".join(parts)


def _place(row: Row) -> str:
    if not row.test:
        return f"`{row.file}`"
    # Some tests are made by functions, and their names are in no file.
    is_written = row.test in (ROOT / row.file).read_text()
    return f"`{row.file}`, `{row.test}`" if is_written else f"`{row.file}`, {row.test}"


if __name__ == "__main__":
    print(page(), end="")
