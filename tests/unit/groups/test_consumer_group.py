"""The consumer protocol (KIP-848): no partition ever has two owners, and all have one once members
stop changing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from odradek_broker.coordinator_step import NothingApplied, RequestId, Step
from odradek_broker.groups.assignors import assign_range, assign_uniform
from odradek_broker.groups.consumer_group import ConsumerGroup
from odradek_broker.groups.consumer_group_state import ConsumerGroupState
from odradek_broker.groups.formats.record_codec import decode, encode
from odradek_broker.groups.group_shard import GroupShard
from odradek_broker.groups.messages import (
    CommitOffsets,
    CommittedOffset,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    TopicCatalog,
)
from odradek_broker.groups.records import MEMBER_BYTES_MAX, GroupRecord
from odradek_broker.groups.settings import GroupSettings
from odradek_protocol.identity import TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode

A, B = b"a" * 16, b"b" * 16


def catalog(version: int = 1, **counts: int) -> TopicCatalog:
    ids = {"a": A, "b": B}
    topics = {name: (ids[name], count) for name, count in (counts or {"a": 6, "b": 3}).items()}
    return TopicCatalog(
        version=version,
        topics=topics,
        matching=lambda pattern: frozenset(n for n in topics if n.startswith(pattern)),
    )


@dataclass
class Member:
    """A correct client: it takes over the partitions that it is assigned, and revokes those that it must revoke."""

    name: str
    epoch: int = 0
    owned: dict[bytes, frozenset[int]] = field(default_factory=dict)
    says_all: bool = True  # joins, or had no answer: then clients say everything again


@dataclass
class Group:
    shard: GroupShard = field(default_factory=lambda: GroupShard(settings=GroupSettings()))
    now_ms: int = 0
    topics: TopicCatalog = field(default_factory=catalog)
    log: list[GroupRecord] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)

    def beat(self, name: str, *, answer_is_lost: bool = False) -> ConsumerHeartbeatAnswer:
        member = self.members.setdefault(name, Member(name))
        joins, says_all = member.epoch == 0, member.epoch == 0 or member.says_all
        told = self.send(
            ConsumerHeartbeat(
                group_id="g",
                member_id=name,
                member_epoch=member.epoch,
                rebalance_timeout_ms=60_000 if says_all else -1,
                subscribed_topics=("a", "b") if says_all else None,
                owned={} if joins else member.owned,
            )
        )
        member.says_all = answer_is_lost
        if answer_is_lost:
            return told
        if told.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            member.epoch, member.owned = 0, {}
        elif told.error is ErrorCode.NONE:
            member.epoch = told.member_epoch
            if told.assignment is not None:
                member.owned = dict(told.assignment)
        return told

    def send(self, beat: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
        step = self.shard.handle_consumer_heartbeat(
            RequestId(0), beat, self.topics, now_ms=self.now_ms, wall_ms=self.now_ms
        )
        return self.take(step)

    def take(self, step: Step[GroupRecord]) -> ConsumerHeartbeatAnswer:
        self.log += step.records
        self.check()
        (told,) = step.responses
        assert isinstance(told.response, ConsumerHeartbeatAnswer)
        return told.response

    def take_all(self, step: Step[GroupRecord]) -> None:
        self.log += step.records

    def check(self) -> None:
        """Assert that no partition has two owners in the coordinator's state."""
        group = self.shard.table.groups.get("g")
        seen: set[tuple[bytes, int]] = set()
        for current in group.state.currents.values() if isinstance(group, ConsumerGroup) else ():
            for part in (current.assigned, current.pending_revocation):
                for topic, indexes in part.items():
                    for index in indexes:
                        assert (topic, index) not in seen, f"{topic!r}-{index} has two owners"
                        seen.add((topic, index))

    def leave(self, name: str) -> None:
        member = self.members.pop(name, None)
        if member is not None and member.epoch > 0:
            self.send(ConsumerHeartbeat(group_id="g", member_id=name, member_epoch=-1))

    def settle(self) -> None:
        for _ in range(4 * len(self.members) + 4):
            for name in list(self.members):
                self.beat(name)

    def settle_with(self, name: str) -> None:
        """Let a new member join until it owns the partitions that it is assigned; the other members
        do nothing.
        """
        for _ in range(5):
            self.beat(name)

    def moved(self) -> GroupShard:
        shard = GroupShard(settings=GroupSettings())
        for record in self.log:
            decoded = decode(*encode(record))
            assert decoded is not None
            shard.table.replay(decoded)
        shard.table.loaded(now_ms=self.now_ms)
        return shard


def all_partitions(topics: TopicCatalog) -> set[tuple[bytes, int]]:
    return {(topic_id, i) for topic_id, count in topics.topics.values() for i in range(count)}


def owned_by_clients(group: Group) -> list[tuple[bytes, int]]:
    return [(t, i) for m in group.members.values() for t, ii in m.owned.items() for i in ii]


def test_one_member_owns_all() -> None:
    group = Group()
    told = group.beat("m1")
    assert told.member_epoch == 1
    assert sorted(owned_by_clients(group)) == sorted(all_partitions(group.topics))


def test_a_second_member_waits_until_the_first_gave_up() -> None:
    group = Group()
    group.beat("m1")
    assert not group.beat("m2").assignment
    group.beat("m1")  # told to give up
    assert not group.beat("m2").assignment
    group.beat("m1")  # says that it did
    assert group.beat("m2").assignment
    group.settle()
    assert {len(m.owned) > 0 for m in group.members.values()} == {True}


def test_a_heartbeat_that_breaks_its_judgement_changes_nothing() -> None:
    group = Group()
    group.beat("m1")
    before = len(group.log)
    topics: Any = ("a", None)  # what no decoder lets through
    for name in ("m1", "m2"):
        beat = ConsumerHeartbeat(
            group_id="g", member_id=name, member_epoch=0, subscribed_topics=topics, owned={}
        )
        with pytest.raises(NothingApplied):
            group.send(beat)
    assert len(group.log) == before
    group.settle()


def test_what_a_member_may_be_told() -> None:
    group = Group()
    group.beat("m1")
    beat = ConsumerHeartbeat(group_id="g", member_id="m1", member_epoch=9)
    assert group.send(beat).error is ErrorCode.FENCED_MEMBER_EPOCH
    stranger = ConsumerHeartbeat(group_id="g", member_id="x", member_epoch=1)
    assert group.send(stranger).error is ErrorCode.UNKNOWN_MEMBER_ID
    joins = ConsumerHeartbeat(
        group_id="g",
        member_id="x",
        member_epoch=0,
        rebalance_timeout_ms=1,
        subscribed_topics=("a",),
        server_assignor="best",
    )
    assert group.send(joins).error is ErrorCode.UNSUPPORTED_ASSIGNOR


def test_a_commit_counts_only_at_the_present_epoch() -> None:
    group = Group()
    group.beat("m1")
    partition = TopicPartition("a", 0)

    def commit(epoch: int) -> ErrorCode:
        request = CommitOffsets(
            group_id="g",
            member_id="m1",
            instance_id=None,
            generation_or_epoch=epoch,
            offsets={partition: CommittedOffset(offset=3)},
        )
        step = group.shard.offsets.handle_commit(
            RequestId(1), request, group.topics, now_ms=0, wall_ms=0
        )
        told = step.responses[0].response
        return told.error or told.partitions[partition]

    assert commit(1) is ErrorCode.NONE
    assert commit(0) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(2) is ErrorCode.STALE_MEMBER_EPOCH


def test_new_partitions_are_handed_out_at_the_next_heartbeat() -> None:
    group = Group()
    group.beat("m1")
    group.topics = catalog(version=2, a=8, b=3)
    group.settle()
    assert sorted(owned_by_clients(group)) == sorted(all_partitions(group.topics))


def test_a_silent_member_is_taken_out_and_its_partitions_move() -> None:
    group = Group()
    group.beat("m1")
    group.beat("m2")
    group.settle()
    group.now_ms += 45_000
    group.beat("m1")
    group.log += group.shard.tick(now_ms=group.now_ms, wall_ms=0).records
    del group.members["m2"]
    group.settle()
    assert sorted(owned_by_clients(group)) == sorted(all_partitions(group.topics))


def by_pattern(group: Group, name: str, epoch: int, **says: Any) -> ConsumerHeartbeatAnswer:
    beat = ConsumerHeartbeat(group_id="g", member_id=name, member_epoch=epoch)
    if epoch == 0:
        beat = replace(beat, rebalance_timeout_ms=1_000, subscribed_regex="a", owned={})
    return group.send(replace(beat, **says))


def test_members_with_a_pattern_own_their_topics_after_a_failover() -> None:
    group = Group()
    assert by_pattern(group, "m1", 0).assignment == {A: frozenset(range(6))}
    by_pattern(group, "m2", 0)
    group.shard = group.moved()
    by_pattern(group, "m2", -1)
    told = by_pattern(group, "m1", 1)
    assert told.member_epoch == 3
    assert group.shard.table.groups["g"].state.targets == {"m1": {A: frozenset(range(6))}}  # type: ignore[union-attr]


def test_a_pattern_matches_what_its_member_may_know_of() -> None:
    def visible(principal: str, host: str, names: frozenset[str]) -> frozenset[str]:
        assert host == "10.0.0.1"
        return names if principal == "User:alice" else frozenset()

    group = Group(topics=replace(catalog(), visible=visible))
    says = {"client_host": "/10.0.0.1"}
    told = by_pattern(group, "m1", 0, principal="User:bob", **says)
    assert (told.error, told.assignment) == (ErrorCode.NONE, {})
    by_pattern(group, "m2", 0, principal="User:alice", **says)
    group.shard = group.moved()
    for _ in range(2):
        told = by_pattern(group, "m2", 2, owned={}, principal="User:alice", **says)
    targets = group.shard.table.groups["g"].state.targets  # type: ignore[union-attr]
    assert targets == {"m1": {}, "m2": {A: frozenset(range(6))}}
    by_pattern(group, "m1", 1, owned={}, principal="User:alice", **says)
    assert all(targets.values()), "somebody else uses the member now"


def test_a_static_member_with_a_pattern_comes_back_to_it() -> None:
    group = Group()
    by_pattern(group, "m1", 0, instance_id="i")
    by_pattern(group, "m2", 0)
    by_pattern(group, "m1", -2, instance_id="i")
    assert by_pattern(group, "m3", 0, instance_id="i").error is ErrorCode.NONE
    by_pattern(group, "m2", -1)
    by_pattern(group, "m3", 2, instance_id="i")
    assert group.shard.table.groups["g"].state.targets == {"m3": {A: frozenset(range(6))}}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "says",
    [
        {"subscribed_topics": tuple(f"{i:0>249}" for i in range(5_000))},
        {"rack_id": "r" * MEMBER_BYTES_MAX},
        {"instance_id": "i" * 32_768},
    ],
)
def test_a_member_that_says_more_than_a_record_holds_is_refused(says: dict[str, Any]) -> None:
    group = Group()
    assert by_pattern(group, "m1", 0, **says).error is ErrorCode.INVALID_REQUEST
    assert group.log == []
    assert group.shard.table.groups == {}


def revoking(group: Group, **says: Any) -> None:
    """Return a group in which m1 has one second to revoke half of its partitions, because m2 has joined."""
    by_pattern(group, "m1", 0, **says)
    by_pattern(group, "m2", 0)
    by_pattern(group, "m1", 1, owned={A: frozenset(range(6))}, **says)


def passes(group: Group, ms: int) -> None:
    group.now_ms += ms
    group.log += group.shard.tick(now_ms=group.now_ms, wall_ms=group.now_ms).records


def test_a_static_member_that_leaves_while_it_revokes_keeps_its_place_for_a_session() -> None:
    group = Group()
    revoking(group, instance_id="i")
    by_pattern(group, "m1", -2, instance_id="i")
    passes(group, 1_000)  # it had that long to revoke
    assert sorted(m.member_id for m in group.shard.table.describe("g").members) == ["m1", "m2"]
    passes(group, 44_000)
    assert group.shard.table.describe("g").members == ()


def test_each_revocation_has_a_whole_rebalance_timeout() -> None:
    group = Group()
    revoking(group)
    passes(group, 900)
    by_pattern(group, "m3", 0)  # from now on m1 has more to give up than it was told
    half = group.shard.table.groups["g"].state.currents["m1"].assigned  # type: ignore[union-attr]
    told = by_pattern(group, "m1", 1, owned=half)
    assert told.assignment != half, "it gave up the first part, and is told of the second"
    passes(group, 999)
    assert by_pattern(group, "m1", 1).error is ErrorCode.NONE
    passes(group, 1)
    assert by_pattern(group, "m1", 1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_was_replaced_as_a_static_member_is_fenced() -> None:
    group = Group()
    by_pattern(group, "m1", 0, instance_id="i")
    by_pattern(group, "m1", -2, instance_id="i")
    assert by_pattern(group, "m2", 0, instance_id="i").error is ErrorCode.NONE
    told = by_pattern(group, "m1", 1, instance_id="i")
    assert told.error is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_returns_to_its_partitions() -> None:
    group = Group()

    def join(name: str) -> ConsumerHeartbeatAnswer:
        return group.send(
            ConsumerHeartbeat(
                group_id="g",
                member_id=name,
                member_epoch=0,
                instance_id="i",
                rebalance_timeout_ms=60_000,
                subscribed_topics=("a",),
                owned={},
            )
        )

    first = join("m1")
    assert join("m2").error is ErrorCode.UNRELEASED_INSTANCE_ID
    group.send(ConsumerHeartbeat(group_id="g", member_id="m1", member_epoch=-2, instance_id="i"))
    again = join("m2")
    assert again.assignment == first.assignment
    assert again.member_epoch == first.member_epoch


@given(st.randoms(use_true_random=False), st.integers(5, 60))
def test_any_history_settles_with_every_partition_owned_once(
    chance: random.Random, steps: int
) -> None:
    group = Group()
    for step in range(steps):
        name = f"m{chance.randrange(5)}"
        group.now_ms += chance.randrange(0, 4_000)
        match chance.randrange(8):
            case 0:
                group.leave(name)
            case 1:
                group.members.pop(name, None)  # dies, unheard
            case 2:
                group.topics = catalog(version=step + 2, a=chance.randrange(1, 9), b=3)
            case 3:
                group.beat(name, answer_is_lost=True)
            case 4:
                group.log += group.shard.tick(now_ms=group.now_ms, wall_ms=0).records
                group.check()
            case _:
                group.beat(name)
    group.beat("survivor")
    group.now_ms += 44_000
    group.settle()
    group.now_ms += 44_000  # the dead time out, the living do not
    group.settle()
    group.log += group.shard.tick(now_ms=group.now_ms + 1_000, wall_ms=0).records
    group.settle()
    assert sorted(owned_by_clients(group)) == sorted(all_partitions(group.topics))
    assert group.shard.table.describe("g").state == "Stable"
    moved = group.moved()
    assert moved.table.describe("g") == group.shard.table.describe("g")


subscriptions = st.dictionaries(
    st.text("mn", min_size=1, max_size=3),
    st.sampled_from([{A}, {B}, {A, B}]).map(frozenset),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("assign", [assign_range, assign_uniform])
@given(subscriptions, st.integers(0, 12), st.integers(0, 12))
def test_assignors_give_each_partition_to_one_subscriber(assign, members, a: int, b: int) -> None:  # type: ignore[no-untyped-def]
    counts = {A: a, B: b}
    shares = assign(members, counts, {})
    given_out = [(t, i) for share in shares.values() for t, ii in share.items() for i in ii]
    wanted = {t for topics in members.values() for t in topics}
    assert sorted(given_out) == sorted(
        (t, i) for t in counts if t in wanted for i in range(counts[t])
    )
    for member, share in shares.items():
        assert set(share) <= members[member]


@given(subscriptions, subscriptions, st.integers(0, 12), st.integers(0, 12))
def test_uniform_leaves_nothing_that_could_move_to_a_member_with_less(  # type: ignore[no-untyped-def]
    before, after, a: int, b: int
) -> None:
    counts = {A: a, B: b}
    shares = assign_uniform(after, counts, assign_uniform(before, counts, {}))
    sizes = {member: sum(map(len, share.values())) for member, share in shares.items()}
    for giver, share in shares.items():
        for taker, topics in after.items():
            could_move = any(topic in topics for topic in share)
            assert not could_move or sizes[giver] - sizes[taker] <= 1


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 40))
def test_uniform_is_balanced_and_moves_little(before: int, after: int, partitions: int) -> None:
    counts = {A: partitions}
    old = assign_uniform({f"m{i}": frozenset({A}) for i in range(before)}, counts, {})
    new = assign_uniform({f"m{i}": frozenset({A}) for i in range(after)}, counts, old)
    sizes = [sum(len(ii) for ii in share.values()) for share in new.values()]
    assert max(sizes) - min(sizes) <= 1
    for member, share in new.items():
        kept = len(share.get(A, frozenset()) & old.get(member, {}).get(A, frozenset()))
        could = min(len(old.get(member, {}).get(A, frozenset())), partitions // after)
        assert kept >= could


def test_the_check_catches_a_partition_that_is_given_away_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check once looked at a field that groups no longer use, and passed whatever happened."""
    monkeypatch.setattr(ConsumerGroupState, "owner_of", lambda *_: None)
    group = Group()
    group.beat("m1")
    group.settle()
    with pytest.raises(AssertionError, match="has two owners"):
        group.settle_with("m2")
