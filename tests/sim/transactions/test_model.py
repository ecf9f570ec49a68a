"""The explicit-state model shows that the rules of the transaction protocol suffice, and that each of them
is needed.
"""

from __future__ import annotations

import pytest

from tests.sim.transactions.model import Rules, explore, without


def test_no_state_breaks_an_invariant() -> None:
    exploration = explore(Rules())
    assert not exploration.violation, exploration.events
    assert exploration.states > 10_000, "the model has too few states"


@pytest.mark.parametrize(
    ("rule", "invariant"),
    [
        ("all_partitions_before_completion", "T4"),
        ("late_end_is_refused", "WC"),
        ("decision_is_committed_first", "T2"),
        ("batches_are_verified", "T5"),
        ("marker_voids_the_guard", "T5"),
        ("coordinator_epoch_is_fenced", "T9"),
        ("acknowledgements_name_the_decision", "T4"),
        ("add_waits_for_the_completion", "T4"),
    ],
)
def test_without_a_rule_an_invariant_breaks(rule: str, invariant: str) -> None:
    exploration = explore(without(rule), states_max=100_000)
    assert exploration.violation.startswith(invariant), exploration
