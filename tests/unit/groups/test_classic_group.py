"""The classic group protocol, tested by sequences of requests and responses."""

from __future__ import annotations

from typing import Any

import pytest

from odradek_broker.coordinator_step import Step
from odradek_broker.groups.classic_group import ClassicGroup
from odradek_broker.groups.classic_members import ClassicState
from odradek_broker.groups.group_shard import GroupShard
from odradek_broker.groups.records import GROUP_BYTES_MAX, MEMBER_BYTES_MAX, GroupRecord
from odradek_broker.groups.settings import GroupSettings
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.groups.conversation import DELAY_MS, REBALANCE_MS, SESSION_MS, Conversation
from tests.unit.groups.group_clients import Partition, subscription


def test_two_members_share_a_generation_after_the_initial_delay() -> None:
    talk = Conversation()
    first, second = talk.join(), talk.join()
    talk.wait(DELAY_MS - 1)
    assert not talk.answers
    talk.wait(DELAY_MS)
    leader, follower = talk.joined(first), talk.joined(second)
    assert leader.generation == follower.generation == 1
    assert leader.leader == follower.leader == leader.member_id
    assert [m.member_id for m in leader.members] == [leader.member_id, follower.member_id]
    assert follower.members == ()
    assert leader.protocol == "range"


def test_followers_wait_for_the_leaders_assignment() -> None:
    talk = Conversation()
    leader, follower = talk.stable_pair()
    assert talk.heartbeat(leader, 1) is ErrorCode.NONE
    assert talk.synced(talk.sync(follower, 1)).assignment == b"b"


def test_a_new_member_makes_the_others_join_again() -> None:
    talk = Conversation()
    leader, follower = talk.stable_pair()
    third = talk.join()
    assert talk.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = [talk.join(leader), talk.join(follower)]
    assert {talk.joined(r).generation for r in [third, *again]} == {2}


def test_who_does_not_join_again_in_time_is_out() -> None:
    talk = Conversation()
    leader, follower = talk.stable_pair()
    third = talk.join()
    talk.join(leader)
    for _ in range(REBALANCE_MS // 5_000):
        talk.now_ms += 5_000
        talk.heartbeat(follower, 1)
        talk.take(talk.shard.tick(now_ms=talk.now_ms, wall_ms=talk.now_ms))
    assert talk.joined(third).generation == 2
    assert talk.heartbeat(follower, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_out_after_its_session() -> None:
    talk = Conversation()
    leader, follower = talk.stable_pair()
    talk.now_ms += SESSION_MS - 1
    talk.heartbeat(leader, 1)
    talk.wait(1)
    assert talk.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert talk.joined(talk.join(leader)).generation == 2
    assert talk.heartbeat(follower, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_never_syncs_is_replaced() -> None:
    talk = Conversation()
    first, second = talk.join(), talk.join()
    talk.wait(DELAY_MS)
    leader, follower = talk.joined(first).member_id, talk.joined(second).member_id
    waiting = talk.sync(follower, 1)
    for _ in range(REBALANCE_MS // 5_000 + 1):
        talk.now_ms += 5_000
        talk.heartbeat(follower, 1)
        talk.heartbeat(leader, 1)
        talk.take(talk.shard.tick(now_ms=talk.now_ms, wall_ms=talk.now_ms))
    assert talk.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert talk.joined(talk.join(follower)).leader == follower


def test_members_of_newer_clients_are_first_told_their_id() -> None:
    talk = Conversation()
    told = talk.joined(talk.join(requires_known_member=True))
    assert told.error is ErrorCode.MEMBER_ID_REQUIRED
    joined = talk.join(told.member_id, requires_known_member=True)
    talk.wait(DELAY_MS)
    assert talk.joined(joined).member_id == told.member_id


def test_a_pending_member_that_never_returns_holds_nobody_up() -> None:
    talk = Conversation()
    talk.join(requires_known_member=True)
    joined = talk.join()
    talk.wait(DELAY_MS)
    talk.wait(SESSION_MS)
    assert talk.joined(joined).generation == 1


def test_an_id_stays_good_for_a_session_whatever_generation_begins_meanwhile() -> None:
    talk = Conversation()
    first = talk.join()
    talk.wait(DELAY_MS - 1)
    told = talk.joined(talk.join(requires_known_member=True))
    talk.wait(1)
    leader = talk.joined(first).member_id
    second = talk.join(told.member_id, requires_known_member=True)
    talk.join(leader)
    assert talk.joined(second).error is ErrorCode.NONE
    assert talk.joined(second).generation == 2


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("sticky", b""),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_bad_joins_are_refused_and_disturb_nobody(
    changes: dict[str, Any], error: ErrorCode
) -> None:
    talk = Conversation()
    leader, _ = talk.stable_pair()
    assert talk.joined(talk.join(**changes)).error is error
    assert talk.heartbeat(leader, 1) is ErrorCode.NONE


def test_an_empty_group_id_is_invalid_and_not_an_unknown_member() -> None:
    """Clients join again as new members after UNKNOWN_MEMBER_ID, which would never end."""
    talk = Conversation()
    assert talk.heartbeat("m", 1, group_id="") is ErrorCode.INVALID_GROUP_ID
    assert talk.synced(talk.sync("m", 1, group_id="")).error is ErrorCode.INVALID_GROUP_ID
    assert talk.leave(("m", None), group_id="").error is ErrorCode.INVALID_GROUP_ID


def test_a_consumer_without_a_group_id_may_commit_what_it_assigns_itself() -> None:
    talk = Conversation()
    assert talk.commit("", -1, group_id="") is ErrorCode.NONE


@pytest.mark.parametrize("member_id", ["", "m"])
def test_a_member_of_a_group_that_is_gone_is_told_that_it_is_unknown(member_id: str) -> None:
    """It then joins without its member id, which the group no longer knows."""
    assert Conversation().commit(member_id, 3) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_has_a_largest_size() -> None:
    talk = Conversation(shard=GroupShard(settings=GroupSettings(max_size=1)))
    talk.join()
    assert talk.joined(talk.join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_static_member_that_returns_keeps_its_assignment_without_a_rebalance() -> None:
    talk = Conversation()
    first, second = talk.join(instance_id="one"), talk.join(instance_id="two")
    talk.wait(DELAY_MS)
    one, two = talk.joined(first).member_id, talk.joined(second).member_id
    talk.sync(one, 1, "one", **{one.replace("-", "_"): b"a", two.replace("-", "_"): b"b"})
    talk.wait(SESSION_MS // 2)
    returned = talk.joined(talk.join(instance_id="two"))
    assert (returned.error, returned.generation) == (ErrorCode.NONE, 1)
    assert returned.member_id != two
    assert talk.synced(talk.sync(returned.member_id, 1, "two")).assignment == b"b"
    assert talk.synced(talk.sync(two, 1, "two")).error is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_leader_that_returns_skips_the_assignment() -> None:
    talk = Conversation()
    first = talk.join(instance_id="one")
    talk.wait(DELAY_MS)
    one = talk.joined(first).member_id
    talk.sync(one, 1, "one", **{one.replace("-", "_"): b"a"})
    returned = talk.joined(talk.join(instance_id="one"))
    assert returned.skips_assignment
    assert returned.leader == returned.member_id


def test_leaving_empties_the_group_and_writes_it() -> None:
    talk = Conversation()
    leader, follower = talk.stable_pair()
    left = talk.leave((leader, None), (follower, None), ("stranger", None))
    assert [error for _, _, error in left.members] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert talk.shard.table.describe("g").state == "Empty"
    assert talk.moved().shard.table.describe("g").state == "Empty"


def test_no_commit_is_taken_from_an_old_generation() -> None:
    talk = Conversation()
    leader, follower = talk.stable_pair()
    assert talk.commit(leader, 1, 5) is ErrorCode.NONE
    talk.leave((follower, None))
    talk.join(leader)
    talk.sync(leader, 2, **{leader.replace("-", "_"): b"a"})
    assert talk.commit(leader, 1, 4) is ErrorCode.ILLEGAL_GENERATION
    assert talk.commit(follower, 1, 4) is ErrorCode.UNKNOWN_MEMBER_ID
    assert talk.fetch() == 5


def test_a_consumer_without_a_group_commits_while_nobody_is_in_it() -> None:
    talk = Conversation()
    assert talk.commit("", -1, 7) is ErrorCode.NONE
    assert talk.fetch() == 7
    talk.stable_pair()
    assert talk.commit("", -1, 8) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_moved_group_goes_on_where_it_was() -> None:
    talk = Conversation()
    leader, follower = talk.stable_pair()
    talk.commit(leader, 1, 42)
    moved = talk.moved()
    assert moved.heartbeat(follower, 1) is ErrorCode.NONE
    assert moved.synced(moved.sync(follower, 1)).assignment == b"b"
    assert moved.fetch() == 42
    group = moved.shard.table.groups["g"]
    assert group.state is ClassicState.STABLE  # type: ignore[union-attr]


def test_a_group_with_members_is_not_deleted() -> None:
    talk = Conversation()
    leader, follower = talk.stable_pair()
    request_id = talk.ask()
    talk.take(talk.shard.handle_delete_group(request_id, "g"))
    assert talk.answers[request_id] is ErrorCode.NON_EMPTY_GROUP
    talk.leave((leader, None), (follower, None))
    request_id = talk.ask()
    talk.take(talk.shard.handle_delete_group(request_id, "g"))
    assert talk.answers[request_id] is ErrorCode.NONE
    assert talk.shard.table.describe("g").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert talk.moved().shard.table.describe("g").error is ErrorCode.GROUP_ID_NOT_FOUND


def consumer_says(owned: set[Partition], generation: int) -> dict[str, Any]:
    """Return the subscription with which a cooperative consumer joins."""
    return {"protocols": (("cooperative-sticky", subscription(owned, generation)),)}


def test_a_static_member_that_returns_owning_nothing_causes_no_rebalance() -> None:
    talk = Conversation()
    other = talk.join(**consumer_says(set(), -1))
    fixed = talk.join(instance_id="i", **consumer_says({("a", 1)}, 4))
    talk.wait(DELAY_MS)
    leader, member = talk.joined(other).member_id, talk.joined(fixed).member_id
    talk.sync(member, 1, "i")
    talk.sync(leader, 1, **{member.replace("-", "_"): b"b"})
    back = talk.join(instance_id="i", **consumer_says(set(), -1))
    assert talk.joined(back).error is ErrorCode.NONE
    assert talk.joined(back).generation == 1
    assert talk.heartbeat(leader, 1) is ErrorCode.NONE
    assert talk.synced(talk.sync(talk.joined(back).member_id, 1, "i")).assignment == b"b"


def test_a_follower_that_waits_for_a_slow_leader_is_not_taken_for_dead() -> None:
    talk = Conversation()
    first, second = talk.join(), talk.join()
    talk.wait(DELAY_MS)
    leader, follower = talk.joined(first).member_id, talk.joined(second).member_id
    waits = talk.sync(follower, 1)
    for _ in range(3):
        talk.wait(SESSION_MS - 1)
        assert talk.heartbeat(leader, 1) is ErrorCode.NONE
    assert waits not in talk.answers
    talk.sync(leader, 1, **{follower.replace("-", "_"): b"b"})
    assert talk.synced(waits).assignment == b"b"
    talk.wait(SESSION_MS - 1)
    assert talk.heartbeat(follower, 1) is ErrorCode.NONE


def test_sessions_begin_when_the_load_ends() -> None:
    talk = Conversation()
    leader, follower = talk.stable_pair()
    moved = talk.moved(load_ms=2 * SESSION_MS)
    moved.wait(SESSION_MS - 1)
    assert moved.heartbeat(leader, 1) is ErrorCode.NONE
    assert moved.heartbeat(follower, 1) is ErrorCode.NONE


def test_ids_that_were_handed_out_and_never_used_are_bounded() -> None:
    talk = Conversation(shard=GroupShard(settings=GroupSettings(max_size=3)))
    codes = [talk.joined(talk.join(requires_known_member=True)).error for _ in range(4)]
    assert codes == [ErrorCode.MEMBER_ID_REQUIRED] * 3 + [ErrorCode.GROUP_MAX_SIZE_REACHED]
    talk.wait(SESSION_MS)
    again = talk.join(requires_known_member=True)
    assert talk.joined(again).error is ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": "g" * 32_768}, ErrorCode.INVALID_GROUP_ID),
        ({"instance_id": "i" * 32_768}, ErrorCode.INVALID_REQUEST),
        ({"client_id": "c" * 32_768}, ErrorCode.INVALID_REQUEST),
        ({"protocols": (("p" * 32_768, b""),)}, ErrorCode.INVALID_REQUEST),
        ({"protocols": (("p", bytes(MEMBER_BYTES_MAX)),)}, ErrorCode.INVALID_REQUEST),
        ({"protocols": tuple((f"{i:0>30000}", b"") for i in range(40))}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_names_that_no_record_has_room_for_are_refused(
    changes: dict[str, Any], error: ErrorCode
) -> None:
    talk = Conversation()
    assert talk.joined(talk.join(**changes)).error is error
    assert talk.shard.table.groups == {}


def test_what_all_members_say_is_bounded_since_their_leader_is_told_all_of_it() -> None:
    talk = Conversation()
    says = {"protocols": (("range", bytes(MEMBER_BYTES_MAX - 10)), ("r", b""))}
    fit = GROUP_BYTES_MAX // MEMBER_BYTES_MAX
    for _ in range(fit):
        assert talk.join(**says) not in talk.answers, "it waits for the others"
    assert talk.joined(talk.join(**says)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    small = talk.join(protocols=(("range", b"r"),))
    talk.wait(DELAY_MS)
    assert talk.joined(small).error is ErrorCode.NONE


@pytest.mark.parametrize("is_retried", [False, True])
def test_a_generation_that_takes_no_record_is_not_written_and_begins_anew(is_retried: bool) -> None:
    """A batch that is too large to be replicated would block its partition, and others on the same
    stream, for ever.
    """
    talk = Conversation()
    first, second = talk.join(), talk.join()
    talk.wait(DELAY_MS)
    leader, follower = talk.joined(first).member_id, talk.joined(second).member_id
    waiting = talk.sync(follower, 1)
    told = talk.sync(leader, 1, **{follower.replace("-", "_"): bytes(GROUP_BYTES_MAX)})
    for answered in (waiting, told):
        assert talk.synced(answered).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert talk.log == []
    assert talk.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = [talk.join(leader), talk.join(follower)]
    assert {talk.joined(one).generation for one in again} == {2}
    if is_retried:
        told = talk.sync(leader, 2, **{leader.replace("-", "_"): bytes(1 << 20)})
        assert talk.synced(told).error is ErrorCode.NONE
        assert len(talk.log) == 1


def test_a_join_that_is_refused_makes_no_group() -> None:
    talk = Conversation()
    assert talk.joined(talk.join(protocols=())).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert talk.shard.table.listings() == []


def test_time_passes_only_groups_by_with_something_due(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Conversation()
    talk.stable_pair()
    talk.wait(1)
    looked: list[int] = []
    tick = ClassicGroup.tick

    def watched(self: ClassicGroup, *, now_ms: int) -> Step[GroupRecord]:
        looked.append(now_ms)
        return tick(self, now_ms=now_ms)

    monkeypatch.setattr(ClassicGroup, "tick", watched)
    ends_ms = talk.now_ms - 1 + SESSION_MS
    while talk.now_ms < ends_ms:
        talk.wait(100)
    assert len(looked) == 1
    assert looked[0] >= ends_ms
    assert talk.shard.table.describe("g").state == "Empty"
