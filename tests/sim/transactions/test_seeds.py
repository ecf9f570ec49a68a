"""Seeds with transactional clients run under faults without a violation."""

from __future__ import annotations

import gc

import pytest

from tests.sim.transactions import transactions_run
from tests.sim.transactions.transactions_run import Outcome, TransactionsRun, run_seed

DECIDED_MIN = 50


def play(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.violations, f"seed {seed}: {outcome.violations[:3]}\n{outcome.trace}"
    assert outcome.decided >= DECIDED_MIN, f"seed {seed}: {outcome.counters}"


def test_no_garbage_is_collected_while_a_seed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment of a collection would differ between processes, and so would the run of the seed."""
    was_enabled: list[bool] = []

    class Run(TransactionsRun):
        def run(self) -> Outcome:
            was_enabled.append(gc.isenabled())
            return Outcome(self.seed)

    monkeypatch.setattr(transactions_run, "TransactionsRun", Run)
    run_seed(6)
    assert was_enabled == [False]
    assert gc.isenabled()


# In seed 320044 a task fails in the step in which its query is stopped, after another task was prepared.
# In seed 334207 a transaction is completed, and the next one begins and is aborted, in one iteration of the event loop.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2, 320044, 334207])
def test_transactions_keep_their_promises_under_faults(seed: int) -> None:
    play(seed)
