"""Seeds with transactional clients run under faults without a violation."""

from __future__ import annotations

import pytest

from tests.sim.transactions.transactions_run import run_seed

DECIDED_MIN = 50


def play(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.violations, f"seed {seed}: {outcome.violations[:3]}\n{outcome.trace}"
    assert outcome.decided >= DECIDED_MIN, f"seed {seed}: {outcome.counters}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
def test_transactions_keep_their_promises_under_faults(seed: int) -> None:
    play(seed)
