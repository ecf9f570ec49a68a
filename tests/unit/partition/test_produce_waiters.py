"""Requests that wait for the high watermark get one response each, in the order of the log."""

from __future__ import annotations

from odradek_broker.partition.produces import ProduceWaiters
from odradek_protocol.identity import LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode

ENDS = (50, 10, 40, 20, 60, 30)  # a repeat comes behind what was appended after it


def waiters(*, deadline_ms: int = 100) -> ProduceWaiters:
    added = ProduceWaiters(LeaderEpoch(5))
    for end in ENDS:
        added.add(end, base_offset=Offset(end - 1), end_offset=Offset(end), deadline_ms=deadline_ms)
    return added


def test_the_watermark_releases_what_ends_at_or_below_it() -> None:
    waiting = waiters()
    released = waiting.release(Offset(30), ErrorCode.NONE)
    assert [answer.request_id for answer in released] == [10, 20, 30]
    assert len(waiting) == 3
    assert [a.request_id for a in waiting.release(Offset(60), ErrorCode.NONE)] == [40, 50, 60]


def test_expired_waiters_are_answered_in_order_and_the_others_stay_so() -> None:
    waiting = waiters()
    waiting.add(5, base_offset=Offset(4), end_offset=Offset(5), deadline_ms=101)
    waiting.add(15, base_offset=Offset(14), end_offset=Offset(15), deadline_ms=200)
    assert waiting.expire(99, ErrorCode.REQUEST_TIMED_OUT) == []
    expired = waiting.expire(100, ErrorCode.REQUEST_TIMED_OUT)
    assert [answer.request_id for answer in expired] == sorted(ENDS)
    assert {answer.base_offset for answer in expired} == {-1}
    assert [a.request_id for a in waiting.release(Offset(99), ErrorCode.NONE)] == [5, 15]


def test_who_is_failed_is_answered_once_and_in_order() -> None:
    waiting = waiters()
    failed = waiting.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert [answer.request_id for answer in failed] == sorted(ENDS)
    assert len(waiting) == 0
    assert waiting.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER) == []
