"""Decoding a damaged batch of any kind raises CorruptBatch, soon, and without a crash or a leak."""

from __future__ import annotations

import pytest

from tests.unit.protocol import asan
from tests.unit.protocol.fuzz import Findings, fuzz


def assert_nothing_was_found(findings: Findings, cases: int) -> None:
    assert not findings.problems
    assert findings.decoded + findings.refused == cases
    assert findings.decoded > cases // 100, "the mutations are too wild to reach the decoder"
    assert findings.refused > cases // 10


def test_damaged_batches_are_refused() -> None:
    assert_nothing_was_found(fuzz(5_000, seed=1), 5_000)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_million_damaged_batches_are_refused() -> None:
    assert_nothing_was_found(fuzz(1_000_000, seed=2), 1_000_000)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_the_c_codec_survives_under_the_sanitizers() -> None:
    if not asan.sanitizer_libraries():
        pytest.skip("the C compiler has no sanitizers")
    done = asan.run(1_000_000, seed=3)
    assert done.returncode == 0, done.stderr[-5_000:]
