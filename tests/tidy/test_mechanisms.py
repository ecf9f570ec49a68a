"""docs/mechanisms.md agrees with the registries of planted bugs, and each promise in SECURITY.md
names a test that checks it.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.tidy.mechanisms import page

ROOT = Path(__file__).parents[2]
ITEM = re.compile(r"^- .*?(?=^- |^#|^\|?$)", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"`(tests/[\w/]+\.py)`")


def test_the_page_of_planted_bugs_is_up_to_date() -> None:
    written = (ROOT / "docs/mechanisms.md").read_text()
    assert written == page(), "run: python -m tests.tidy.mechanisms > docs/mechanisms.md"


def test_files_on_that_page_exist() -> None:
    files = set(TEST.findall(page()))
    assert len(files) > 15, "the registries are read wrongly"
    assert not {file for file in files if not (ROOT / file).exists()}


def test_every_promise_names_its_test() -> None:
    promises = ITEM.findall((ROOT / "SECURITY.md").read_text())
    assert len(promises) >= 20, "the list of promises is read wrongly"
    without = [promise for promise in promises if not TEST.search(promise)]
    assert not without, without
    for promise in promises:
        for file in TEST.findall(promise):
            assert (ROOT / file).exists(), f"{file} does not exist: {promise}"
