"""A leader's state of its followers: when the high watermark waits for one that joins the ISR, and
which log starts count.
"""

from __future__ import annotations

import pytest

from odradek_broker.partition.followers import Followers
from odradek_broker.partition.high_watermark import ROUND_FAST_MS, SLOW_ROUNDS_MAX, JoinWait
from odradek_protocol.identity import BrokerId, Offset

LAG_MAX_MS = 10_000


def test_a_round_longer_than_half_the_allowed_lag_is_not_waited_for() -> None:
    wait = JoinWait(lag_max_ms=LAG_MAX_MS)
    for now_ms in range(0, 100 * LAG_MAX_MS, LAG_MAX_MS):
        assert not wait.round_ended(LAG_MAX_MS // 2 + 1, now_ms)


def test_slow_rounds_are_waited_for_after_some_without_a_longer_one_between() -> None:
    wait = JoinWait(lag_max_ms=LAG_MAX_MS)
    slow_ms = ROUND_FAST_MS + 1
    for _ in range(SLOW_ROUNDS_MAX - 1):
        assert not wait.round_ended(slow_ms, 0)
    assert not wait.round_ended(LAG_MAX_MS, 0)
    for _ in range(SLOW_ROUNDS_MAX - 1):
        assert not wait.round_ended(slow_ms, 0)
    assert wait.round_ended(slow_ms, 0)


@pytest.mark.parametrize("reason", ["live", "electable", "none"])
def test_the_log_start_of_those_who_may_lead_or_live_counts(reason: str) -> None:
    followers = Followers(lag_max_ms=LAG_MAX_MS)
    other = BrokerId(2)
    followers.keep([other], {}, 0, is_fsync=False)
    follower = followers.get(other)
    assert follower is not None
    follower.log_start = Offset(5)
    follower.is_live = reason == "live"
    electable = {other} if reason == "electable" else set()
    lowest = followers.lowest_start(Offset(9), electable)
    assert lowest == (9 if reason == "none" else 5)
