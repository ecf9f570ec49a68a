"""Seeds with transactional producers, and the judgement of histories that are known to be bad."""

from __future__ import annotations

import pytest

from odradek_protocol.identity import PartitionIndex, TopicId, TopicIdPartition
from tests.sim.transactions.transactional_producer import Attempted, Fate
from tests.sim.transactions.transactions_run import judge, run_seed

DECIDED_MIN = 50
PARTITION = TopicIdPartition(TopicId(b"t" * 16), PartitionIndex(0))


def play(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.violations, f"seed {seed}: {outcome.violations[:3]}"
    counters = outcome.counters
    decided = counters["transactions committed"] + counters["transactions aborted"]
    assert decided >= DECIDED_MIN, f"seed {seed}: {counters}"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(2))
def test_transactions_are_all_or_nothing_under_faults(seed: int) -> None:
    play(seed)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_many_seeds_of_transactions() -> None:
    for seed in range(2, 60):
        play(seed)


@pytest.mark.parametrize(
    ("fate", "seen", "name"),
    [
        (Fate.COMMITTED, [True, True], None),
        (Fate.COMMITTED, [True, False], "lost write"),
        (Fate.ABORTED, [False, False], None),
        (Fate.ABORTED, [False, True], "wrong commit"),
        (Fate.OPEN, [True, True], "wrong commit"),
        (Fate.UNKNOWN, [True, True], None),
        (Fate.UNKNOWN, [False, False], None),
        (Fate.UNKNOWN, [True, False], "torn"),
    ],
)
def test_what_a_client_knows_is_held_against_what_readers_see(
    fate: Fate, seen: list[bool], name: str | None
) -> None:
    transaction = Attempted(fate=fate)
    transaction.values[PARTITION] = [1, 2]
    assert [violation.name for violation in judge(transaction, seen)] == ([name] if name else [])
