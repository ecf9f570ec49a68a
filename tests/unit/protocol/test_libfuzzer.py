"""Runs the C codec under libFuzzer for a short time, and the stored inputs of earlier runs through
both codecs.
"""

from __future__ import annotations

import pytest

from tests.tools import need
from tests.unit.protocol import libfuzzer


def test_both_codecs_agree_on_the_corpus() -> None:
    inputs = libfuzzer.corpus()
    assert len(inputs) > 50
    for data in inputs:
        libfuzzer.run_case(data, compares=True)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("seconds", "runs"), [(60, 2_000), pytest.param(900, -1, marks=pytest.mark.long)]
)
def test_libfuzzer_finds_nothing(seconds: int, runs: int) -> None:
    need("clang with libFuzzer")
    done = libfuzzer.fuzz(seconds=seconds, runs=runs)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-10_000:]
    assert "new_units_added" in done.stderr
