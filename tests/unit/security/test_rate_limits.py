"""Token buckets limit rates, with one bucket for each name."""

from __future__ import annotations

import pytest

from odradek_gateway.auth import caller_limits
from odradek_gateway.auth.caller_limits import RateLimits


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_is_allowed_and_then_the_rate() -> None:
    clock = Clock()
    limits = RateLimits(per_second=2, burst=4, clock_s=clock)
    assert [limits.take("a") for _ in range(5)] == [0, 0, 0, 0, 1]
    assert limits.take("b") == 0
    clock.now_s = 0.5
    assert [limits.take("a") for _ in range(2)] == [0, 1]


def test_the_wait_is_told_in_whole_seconds() -> None:
    clock = Clock()
    limits = RateLimits(per_second=0.1, burst=1, clock_s=clock)
    assert limits.wait_s("a") == 0
    assert limits.take("a") == 0
    assert limits.take("a") == 10
    clock.now_s = 9.5
    assert limits.wait_s("a") == 1
    clock.now_s = 10
    assert limits.take("a") == 0


def test_who_does_not_come_again_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    limits = RateLimits(per_second=1, burst=1, clock_s=clock)
    for number in range(100):
        limits.take(str(number))
    clock.now_s = 10
    limits.take("new")
    assert len(limits) == 1
    monkeypatch.setattr(caller_limits, "NAMES_MAX", 10)
    for number in range(100):
        limits.take(str(number))
    assert len(limits) == 10
