"""Members that were given an id and did not come back are bounded, and may ask again."""

from __future__ import annotations

from odradek_broker.groups.messages import PENDING_MEMBERS_MAX, make_room
from odradek_protocol.identity import MemberId


def test_whoever_was_given_an_id_first_gives_way() -> None:
    pending: dict[MemberId, int] = {}
    for number in range(PENDING_MEMBERS_MAX + 10):
        make_room(pending)
        pending[MemberId(f"m-{number}")] = 1
    assert len(pending) == PENDING_MEMBERS_MAX
    assert MemberId("m-9") not in pending
    assert MemberId("m-10") in pending
