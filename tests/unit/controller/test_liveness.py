"""A dead broker is fenced in time, whatever the connections of the other brokers do."""

from __future__ import annotations

import pytest

from odradek_metadata_quorum.controller.liveness import Connection, Fence, Liveness
from odradek_protocol.identity import BrokerId

SESSION_MS = 3000
GRACE_MS = 500
BROKERS = tuple(map(BrokerId, (1, 2, 3, 4)))
DEAD = BROKERS[3]


def watched() -> Liveness:
    liveness = Liveness(session_ms=SESSION_MS, grace_ms=GRACE_MS, stall_ms_min=500)
    liveness.activate(BROKERS, now_ms=0)
    for broker_id in BROKERS:
        liveness.heartbeat(broker_id, now_ms=0)
    return liveness


def fences_while_two_flap(liveness: Liveness, *, every_ms: int, end_ms: int) -> list[Fence]:
    """Return the fenced brokers while brokers 2 and 3 lose their connections together every `every_ms` and
    reconnect at once.
    """
    fences: list[Fence] = []
    for now_ms in range(150, end_ms, 50):
        if now_ms % every_ms == every_ms // 2 // 50 * 50:
            for broker_id in BROKERS[1:3]:
                liveness.stream_broken(broker_id, now_ms=now_ms)
        elif now_ms % 250 == 0:
            for broker_id in BROKERS[:3]:
                liveness.heartbeat(broker_id, now_ms=now_ms)
        fences += liveness.tick(now_ms=now_ms)
    return fences


def check_dead_brokers_are_fenced_while_two_flap() -> None:
    """Assert that a dead broker is fenced in time.

    A broker whose stream broke has a grace period and at most one session time-out; a silent broker
    has at most two session time-outs.
    """
    for every_ms in (600, 2000, 2900):
        broken = watched()
        broken.stream_broken(DEAD, now_ms=100)
        fence = Fence(broker_id=DEAD, found=Connection.BROKEN)
        end_ms = 100 + GRACE_MS + SESSION_MS + 100
        assert fences_while_two_flap(broken, every_ms=every_ms, end_ms=end_ms) == [fence]
        silent = watched()
        fence = Fence(broker_id=DEAD, found=Connection.CONNECTED)
        end_ms = 2 * SESSION_MS + 100
        assert fences_while_two_flap(silent, every_ms=every_ms, end_ms=end_ms) == [fence]


def test_dead_brokers_are_fenced_while_two_others_flap() -> None:
    check_dead_brokers_are_fenced_while_two_flap()


def test_one_that_broke_before_the_mass_break_keeps_its_deadline() -> None:
    standby = Liveness(session_ms=SESSION_MS, grace_ms=GRACE_MS, stall_ms_min=500)
    for broker_id in BROKERS:
        standby.heartbeat(broker_id, now_ms=0)
    standby.stream_broken(DEAD, now_ms=100)
    standby.activate(BROKERS, now_ms=5000)
    for broker_id in BROKERS[1:3]:
        standby.stream_broken(broker_id, now_ms=5100)
    assert standby.tick(now_ms=5499) == []
    assert [fence.broker_id for fence in standby.tick(now_ms=5500)] == [DEAD]


def test_a_broker_that_was_heard_again_is_forgiven_again() -> None:
    liveness = watched()
    for broke_at_ms in (100, 5000):
        for broker_id in BROKERS[:3]:
            liveness.heartbeat(broker_id, now_ms=broke_at_ms - 10)
        liveness.heartbeat(DEAD, now_ms=broke_at_ms - 10)
        for broker_id in BROKERS[1:3]:
            liveness.stream_broken(broker_id, now_ms=broke_at_ms)
        assert liveness.tick(now_ms=broke_at_ms + GRACE_MS) == []


def test_the_test_catches_a_forgiveness_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Liveness, "_may_be_forgiven", lambda self, known, now_ms: True)
    with pytest.raises(AssertionError):
        check_dead_brokers_are_fenced_while_two_flap()
