"""Committed offsets of groups: which commits are accepted, and when offsets are deleted."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from odradek_broker.coordinator_step import NOTHING, RequestId
from odradek_broker.groups.formats.record_codec import encode
from odradek_broker.groups.messages import (
    CommitOffsets,
    CommittedOffset,
    ConsumerHeartbeat,
    FetchOffsets,
)
from odradek_broker.groups.records import OffsetCommitRecord
from odradek_protocol.identity import TopicId, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.groups.conversation import DELAY_MS, FIRST, TOPIC_ID, Conversation, catalog
from tests.unit.groups.group_clients import subscription

NEW_TOPIC_ID = TopicId(b"n" * 16)
RETENTION_MS = 7 * 24 * 3_600_000


@pytest.mark.parametrize("absent", [("t", 1), ("t", -1), ("u", 0)])
def test_a_commit_for_a_partition_that_is_not_there_is_refused_alone(
    absent: tuple[str, int],
) -> None:
    talk = Conversation()
    partition = TopicPartition(*absent)
    commit = CommitOffsets(
        group_id="g",
        member_id="",
        instance_id=None,
        generation_or_epoch=-1,
        offsets={partition: CommittedOffset(offset=3), FIRST: CommittedOffset(offset=4)},
    )
    step = talk.shard.offsets.handle_commit(RequestId(1), commit, talk.catalog, now_ms=0, wall_ms=0)
    (told,) = step.responses
    assert told.response.error is ErrorCode.NONE
    assert told.response.partitions == {
        partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        FIRST: ErrorCode.NONE,
    }
    assert [record.partition for record in step.records] == [FIRST]  # type: ignore[union-attr]
    assert set(talk.shard.table.offsets.of("g")) == {FIRST}


def test_an_offset_of_a_topic_that_was_created_again_is_refused() -> None:
    """The member read the old topic; the new one's first records would be passed over."""
    talk = Conversation(catalog=catalog(t=(NEW_TOPIC_ID, 1), u=(TOPIC_ID, 1)))
    other = TopicPartition("u", 0)
    commit = CommitOffsets(
        group_id="g",
        member_id="",
        instance_id=None,
        generation_or_epoch=-1,
        offsets={
            FIRST: CommittedOffset(offset=9, topic_id=TOPIC_ID),
            other: CommittedOffset(offset=4, topic_id=TOPIC_ID),
        },
    )
    step = talk.shard.offsets.handle_commit(RequestId(1), commit, talk.catalog, now_ms=0, wall_ms=0)
    (told,) = step.responses
    assert told.response.partitions == {
        FIRST: ErrorCode.UNKNOWN_TOPIC_ID,
        other: ErrorCode.NONE,
    }
    assert set(talk.shard.table.offsets.of("g")) == {other}


def test_what_was_committed_for_a_deleted_topic_is_forgotten_with_a_tombstone() -> None:
    talk = Conversation(catalog=catalog(t=(TOPIC_ID, 1), u=(NEW_TOPIC_ID, 2)))
    leader, _ = talk.stable_pair()
    assert talk.commit(leader, 1, 5) is ErrorCode.NONE
    assert talk.commit(leader, 1, 6, TopicPartition("u", 1)) is ErrorCode.NONE
    step = talk.shard.offsets.forget_deleted_topics(catalog(u=(NEW_TOPIC_ID, 2)))
    assert [encode(record)[1] for record in step.records] == [None]
    talk.take(step)
    for shard in (talk.shard, talk.moved().shard):
        assert set(shard.table.offsets.of("g")) == {TopicPartition("u", 1)}
        assert shard.table.describe("g").error is ErrorCode.NONE
    assert talk.shard.offsets.forget_deleted_topics(catalog(u=(NEW_TOPIC_ID, 2))) == NOTHING


def test_no_offset_is_looked_at_when_a_topic_without_offsets_is_deleted() -> None:
    """A shard may have hundreds of thousands of offsets, and topics may be deleted in quick succession."""
    talk = Conversation(catalog=catalog(t=(TOPIC_ID, 1), u=(NEW_TOPIC_ID, 2)))
    used = TopicPartition("u", 0)
    for partition in (FIRST, used, used):
        assert talk.commit("", -1, 5, partition) is ErrorCode.NONE
    nothing: Any = None  # raises AttributeError when it is asked for a topic
    shard = talk.shard.offsets
    assert shard.forget_deleted_topics(nothing, {"other"}) == NOTHING
    talk.take(shard.forget_deleted_topics(catalog(t=(TOPIC_ID, 1)), {"u"}))
    assert set(talk.shard.table.offsets.of("g")) == {FIRST}
    for found in (talk, talk.moved()):
        assert found.shard.offsets.forget_deleted_topics(nothing, {"u"}) == NOTHING
        with pytest.raises(AttributeError):
            found.shard.offsets.forget_deleted_topics(nothing, {"t"})


def test_a_topic_that_is_made_again_does_not_have_the_old_offsets() -> None:
    talk = Conversation()
    talk.commit("", -1, 5)
    again = catalog(t=(NEW_TOPIC_ID, 1))
    moved = talk.moved()  # deleted and made again while nobody coordinated
    for found in (talk, moved):
        found.catalog = again
        found.take(found.shard.offsets.forget_deleted_topics(again))
        assert found.fetch() is None
        assert found.commit("", -1, 1) is ErrorCode.NONE
        found.take(found.shard.offsets.forget_deleted_topics(again))
        assert found.fetch() == 1


def test_what_an_older_release_committed_is_known_by_the_topics_name() -> None:
    talk = Conversation()
    record = OffsetCommitRecord(
        group_id="g", partition=FIRST, committed=CommittedOffset(offset=5, commit_timestamp_ms=0)
    )
    talk.shard.table.replay(record)
    assert talk.shard.offsets.forget_deleted_topics(talk.catalog) == NOTHING
    assert talk.fetch() == 5
    talk.take(talk.shard.offsets.forget_deleted_topics(catalog()))
    assert talk.fetch() is None


def test_consumer_groups_forget_deleted_topics_too() -> None:
    talk = Conversation()
    joins = ConsumerHeartbeat(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        subscribed_topics=("t",),
        owned={},
    )
    talk.take(
        talk.shard.handle_consumer_heartbeat(talk.ask(), joins, talk.catalog, now_ms=0, wall_ms=0)
    )
    assert talk.commit("m", 1, 5) is ErrorCode.NONE
    talk.take(talk.shard.offsets.forget_deleted_topics(catalog()))
    request_id = talk.ask()
    talk.take(
        talk.shard.offsets.handle_fetch_offsets(
            request_id, FetchOffsets(group_id="g", partitions=None), now_ms=talk.now_ms
        )
    )
    assert talk.answers[request_id].offsets == {}


def joined_pair(talk: Conversation, **says: Any) -> tuple[str, str]:
    """Return a group with a leader and a follower, in a generation in which only the leader has
    sent SyncGroup.
    """
    first, second = talk.join(**says), talk.join(**says)
    talk.wait(DELAY_MS)
    told = talk.joined(first)
    leader, follower = told.member_id, talk.joined(second).member_id
    talk.sync(leader, told.generation)
    return leader, follower


CONSUMER = {"protocols": (("range", subscription(set(), -1)),)}  # of topics a and b


def test_a_group_without_members_forgets_after_the_retention() -> None:
    talk = Conversation(catalog=catalog(a=(TOPIC_ID, 1), t=(NEW_TOPIC_ID, 1)))
    leader, follower = joined_pair(talk, **CONSUMER)
    subscribed, other = TopicPartition("a", 0), FIRST
    for partition in (subscribed, other):
        assert talk.commit(leader, 1, 5, partition) is ErrorCode.NONE
    talk.take(talk.shard.offsets.expire_offsets(wall_ms=talk.now_ms + RETENTION_MS))
    assert set(talk.shard.table.offsets.of("g")) == {subscribed}, "nobody reads the other"
    talk.now_ms += 1_000
    talk.leave((leader, None), (follower, None))
    talk.take(talk.shard.offsets.expire_offsets(wall_ms=talk.now_ms + RETENTION_MS - 1))
    assert set(talk.shard.table.offsets.of("g")) == {subscribed}, (
        "counts from when the last one left"
    )
    talk.take(talk.shard.offsets.expire_offsets(wall_ms=talk.now_ms + RETENTION_MS))
    for shard in (talk.shard, talk.moved().shard):
        assert shard.table.describe("g").error is ErrorCode.GROUP_ID_NOT_FOUND


def test_nothing_is_forgotten_while_members_come_back() -> None:
    talk = Conversation(catalog=catalog(a=(TOPIC_ID, 1)))
    leader, follower = joined_pair(talk, **CONSUMER)
    talk.commit(leader, 1, 5, TopicPartition("a", 0))
    talk.leave((leader, None), (follower, None))
    talk.join(**CONSUMER)  # the first of them; who else was subscribed to what is not known yet
    talk.take(talk.shard.offsets.expire_offsets(wall_ms=talk.now_ms + 2 * RETENTION_MS))
    assert set(talk.shard.table.offsets.of("g")) == {TopicPartition("a", 0)}


@pytest.mark.parametrize(
    "says", [{"protocol_type": "connect"}, {"protocols": (("range", b"not a subscription"),)}]
)
def test_what_members_use_that_do_not_say_so_is_kept(says: dict[str, Any]) -> None:
    talk = Conversation()
    leader, _ = joined_pair(talk, **says)
    assert talk.commit(leader, 1, 5) is ErrorCode.NONE
    talk.take(talk.shard.offsets.expire_offsets(wall_ms=talk.now_ms + 2 * RETENTION_MS))
    assert talk.fetch() == 5
    request_id = talk.ask()
    talk.take(talk.shard.offsets.handle_delete_offsets(request_id, "g", [FIRST]))
    told = talk.answers[request_id]
    if "protocol_type" in says:
        assert told.error is ErrorCode.NON_EMPTY_GROUP
    else:
        assert told.partitions == {FIRST: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert talk.fetch() == 5


@pytest.mark.parametrize("stays", [{"subscribed_topics": ("a",)}, {"subscribed_regex": "a"}])
def test_what_only_a_member_that_is_gone_read_may_be_forgotten(stays: dict[str, Any]) -> None:
    topics = catalog(a=(TOPIC_ID, 1), t=(NEW_TOPIC_ID, 1))
    talk = Conversation(catalog=replace(topics, matching=lambda name: frozenset({name})))

    def beat(member_id: str, epoch: int, **says: Any) -> None:
        told = ConsumerHeartbeat(group_id="g", member_id=member_id, member_epoch=epoch, **says)
        talk.take(
            talk.shard.handle_consumer_heartbeat(
                talk.ask(), told, talk.catalog, now_ms=talk.now_ms, wall_ms=talk.now_ms
            )
        )

    joins = {"rebalance_timeout_ms": 1_000, "owned": {}}
    beat("stays", 0, **joins, **stays)
    beat("goes", 0, **joins, subscribed_topics=("t",))
    for partition in (FIRST, TopicPartition("a", 0)):
        assert talk.commit("goes", 2, 5, partition) is ErrorCode.NONE
    beat("goes", -1)
    for _ in range(2):
        beat("stays", talk.shard.table.describe("g").members[0].member_epoch)
    request_id = talk.ask()
    asked = [TopicPartition("a", 0), FIRST]
    talk.take(talk.shard.offsets.handle_delete_offsets(request_id, "g", asked))
    assert talk.answers[request_id].partitions == {
        TopicPartition("a", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        FIRST: ErrorCode.NONE,
    }
