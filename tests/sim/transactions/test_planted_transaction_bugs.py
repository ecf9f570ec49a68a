"""Every planted bug of transactions is found, by seeds or by a schedule."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from tests.sim.transactions.planted_bugs import FOUND_BY_SEEDS, Patch
from tests.sim.transactions.transactions_run import run_seed

OF_THE_LIST = {11, 12, 13, *range(40, 65)}
SEEDS_MAX = 20
REGISTRIES = [
    ("tests.unit.groups.test_planted_bugs", "NAMED"),
    ("tests.unit.log.test_planted_bugs", "NAMED"),
    ("tests.unit.partition.test_transaction_schedules", "SCHEDULES"),
    ("tests.unit.replication.test_hanging_transactions", "NAMED"),
    ("tests.unit.transactions.test_planted_bugs", "NAMED"),
    ("tests.unit.transactions.test_planted_runtime_bugs", "BUGS"),
]
"""Registries of bugs that a schedule finds. An entry begins with the bug's number, or the bug's docstring does."""
NUMBER = re.compile(r"(?:(?:Planted b|B)ug )?(\d\d)\b")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("bug", "seed"),
    [(bug, seed) for _, bug, seed in FOUND_BY_SEEDS],
    ids=[f"{number}-{bug.__name__}" for number, bug, _ in FOUND_BY_SEEDS],
)
def test_the_seeds_find_it(monkeypatch: pytest.MonkeyPatch, bug: Patch, seed: int) -> None:
    bug(monkeypatch)
    # The recorded seed comes first. After a change of the code, only another seed may find the bug.
    seeds = [seed, *(other for other in range(SEEDS_MAX) if other != seed)]
    assert any(run_seed(seed).violations for seed in seeds)


def numbers_of(registry: list[Any]) -> set[int]:
    """Return the numbers of a registry's bugs."""
    texts = [
        str(entry[0]) if isinstance(entry[0], int) else entry[-2].__doc__ or ""
        for entry in registry
    ]
    return {int(match.group(1)) for text in texts if (match := NUMBER.match(text)) is not None}


def test_every_bug_of_the_list_is_planted_somewhere() -> None:
    planted = {number for number, _, _ in FOUND_BY_SEEDS}
    for module, registry in REGISTRIES:
        entries = getattr(importlib.import_module(module), registry)
        planted |= numbers_of(entries)
    assert planted >= OF_THE_LIST, OF_THE_LIST - planted


def test_nothing_stays_planted() -> None:
    assert not run_seed(1).violations
