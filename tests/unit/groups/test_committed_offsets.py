"""What groups commit: where it is taken, and when it is forgotten."""

from __future__ import annotations

import pytest

from odradek_broker.groups.formats.record_codec import encode
from odradek_broker.groups.messages import (
    CommitOffsets,
    CommittedOffset,
    ConsumerHeartbeat,
    FetchOffsets,
)
from odradek_broker.groups.records import OffsetCommitRecord
from odradek_broker.groups.step import NOTHING, RequestId
from odradek_protocol.identity import TopicId, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.groups.conversation import FIRST, TOPIC_ID, Conversation, catalog

NEW_TOPIC_ID = TopicId(b"n" * 16)


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
    step = talk.shard.handle_commit(RequestId(1), commit, talk.catalog, now_ms=0, wall_ms=0)
    (told,) = step.answers
    assert told.response.error is ErrorCode.NONE
    assert told.response.partitions == {
        partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        FIRST: ErrorCode.NONE,
    }
    assert [record.partition for record in step.records] == [FIRST]  # type: ignore[union-attr]
    assert set(talk.shard.offsets.of("g")) == {FIRST}


def test_what_was_committed_for_a_deleted_topic_is_forgotten_with_a_tombstone() -> None:
    talk = Conversation(catalog=catalog(t=(TOPIC_ID, 1), u=(NEW_TOPIC_ID, 2)))
    leader, _ = talk.stable_pair()
    assert talk.commit(leader, 1, 5) is ErrorCode.NONE
    assert talk.commit(leader, 1, 6, TopicPartition("u", 1)) is ErrorCode.NONE
    step = talk.shard.forget_deleted_topics(catalog(u=(NEW_TOPIC_ID, 2)))
    assert [encode(record)[1] for record in step.records] == [None]
    talk.take(step)
    for shard in (talk.shard, talk.moved().shard):
        assert set(shard.offsets.of("g")) == {TopicPartition("u", 1)}
        assert shard.describe("g").error is ErrorCode.NONE
    assert talk.shard.forget_deleted_topics(catalog(u=(NEW_TOPIC_ID, 2))) == NOTHING


def test_a_topic_that_is_made_again_does_not_have_the_old_offsets() -> None:
    talk = Conversation()
    talk.commit("", -1, 5)
    again = catalog(t=(NEW_TOPIC_ID, 1))
    moved = talk.moved()  # deleted and made again while nobody coordinated
    for found in (talk, moved):
        found.catalog = again
        found.take(found.shard.forget_deleted_topics(again))
        assert found.fetch() is None
        assert found.commit("", -1, 1) is ErrorCode.NONE
        found.take(found.shard.forget_deleted_topics(again))
        assert found.fetch() == 1


def test_what_an_older_release_committed_is_known_by_the_topics_name() -> None:
    talk = Conversation()
    record = OffsetCommitRecord(
        group_id="g", partition=FIRST, committed=CommittedOffset(offset=5, commit_timestamp_ms=0)
    )
    talk.shard.replay(record, now_ms=0)
    assert talk.shard.forget_deleted_topics(talk.catalog) == NOTHING
    assert talk.fetch() == 5
    talk.take(talk.shard.forget_deleted_topics(catalog()))
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
    talk.take(talk.shard.forget_deleted_topics(catalog()))
    request_id = talk.ask()
    talk.take(
        talk.shard.handle_fetch_offsets(request_id, FetchOffsets(group_id="g", partitions=None))
    )
    assert talk.answers[request_id].offsets == {}
