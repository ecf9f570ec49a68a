"""The number and the lifetime of member ids that were given out and not used are bounded."""

from __future__ import annotations

from odradek_broker.groups.classic_members import PENDING_MEMBERS_MAX, PendingMembers
from odradek_protocol.identity import MemberId


def test_the_oldest_id_gives_way_to_a_new_one() -> None:
    pending = PendingMembers()
    for number in range(PENDING_MEMBERS_MAX + 10):
        pending.hand_out(MemberId(f"m-{number}"), ends_ms=1)
    assert len(pending) == PENDING_MEMBERS_MAX
    assert MemberId("m-9") not in pending
    assert MemberId("m-10") in pending


def test_an_id_is_used_once_and_not_after_its_time() -> None:
    pending = PendingMembers()
    pending.hand_out(MemberId("a"), ends_ms=10)
    pending.hand_out(MemberId("b"), ends_ms=20)
    pending.expire(now_ms=10)
    assert not pending.use(MemberId("a"))
    assert pending.use(MemberId("b"))
    assert not pending.use(MemberId("b"))
