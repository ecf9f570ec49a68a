"""The supervisor of a host's brokers: how long it waits before it restarts a broker that died."""

from __future__ import annotations

from odradek.supervisor import BACKOFF_S_MAX, CALM_S, SupervisedBroker


def broker() -> SupervisedBroker:
    return SupervisedBroker({"id": 1, "metrics_host": "", "settings": {"node.id": "1"}}, ())


def test_pauses_double_up_to_a_bound() -> None:
    dying = broker()
    pauses = [dying.plan_restart(0.0) for _ in range(200)]
    assert pauses[:7] == [0.5, 1, 2, 4, 8, 16, BACKOFF_S_MAX]
    assert set(pauses[7:]) == {BACKOFF_S_MAX}
    assert dying.start_at_s == BACKOFF_S_MAX


def test_a_minute_of_running_makes_the_next_pause_short_again() -> None:
    dying = broker()
    for _ in range(10):
        dying.plan_restart(0.0)
    assert dying.plan_restart(CALM_S) == 0.5


def test_the_derived_settings_come_after_the_given_ones() -> None:
    """If a setting is given twice, the last --set counts."""
    given = ("--config", "f", "--set", "node.id=9")
    child = SupervisedBroker(
        {"id": 1, "metrics_host": "", "settings": {"node.id": "1"}}, given
    ).child
    assert child.arguments == [*given, "--set", "node.id=1"]
