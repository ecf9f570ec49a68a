"""Topics: Kafka's names and counts, placement over racks, growth, deletion, limits."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from odradek_metadata_quorum.controller import ControllerSettings, partitions, topics
from odradek_metadata_quorum.controller.requests import (
    BatchTooLarge,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewPartitions,
    NewTopic,
    Reassignment,
)
from odradek_protocol.identity import BrokerId, PartitionIndex, TopicId, TopicName, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import INTERNAL_TOPICS
from tests.unit.controller.cluster import CLUSTER_ID, Cluster, cluster


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION, "must not be empty"),
        (".", ErrorCode.INVALID_TOPIC_EXCEPTION, "must not be '.' or '..'"),
        ("..", ErrorCode.INVALID_TOPIC_EXCEPTION, "must not be '.' or '..'"),
        ("a" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION, "at most 249"),
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION, "ASCII letters"),
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION, "ASCII letters"),
        ("ä", ErrorCode.INVALID_TOPIC_EXCEPTION, "ASCII letters"),
        ("a\n", ErrorCode.INVALID_TOPIC_EXCEPTION, "ASCII letters"),
        ("old", ErrorCode.TOPIC_ALREADY_EXISTS, "exists"),
        ("__cluster_metadata", ErrorCode.INVALID_REQUEST, "metadata log"),
        ("a_b", ErrorCode.INVALID_TOPIC_EXCEPTION, "collides with topic a.b"),
        ("a.b.", ErrorCode.NONE, ""),
        ("a" * 249, ErrorCode.NONE, ""),
        ("A-1_z.9", ErrorCode.NONE, ""),
    ],
)
def test_names_follow_kafkas_rules(name: str, error: ErrorCode, said: str) -> None:
    found = cluster()
    assert found.create("old").outcome.is_good
    assert found.create("a.b").outcome.is_good
    outcome = found.create(name).outcome
    assert outcome.error is error
    assert said in outcome.message


@pytest.mark.parametrize(
    ("counts", "error", "said"),
    [
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS, "number of partitions must be 1 or more"),
        (
            {"partitions": -2},
            ErrorCode.INVALID_PARTITIONS,
            "number of partitions must be 1 or more",
        ),
        ({"partitions": 10_001}, ErrorCode.POLICY_VIOLATION, "one request may add only 10000"),
        ({"replicas": 0}, ErrorCode.INVALID_REPLICATION_FACTOR, "1 or more"),
        (
            {"replicas": 4},
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "the number of registered brokers is 3",
        ),
        ({"assignments": ((1, 1),)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a different broker"),
        ({"assignments": ((1, 9),)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no broker 9"),
        (
            {"assignments": ((1, 2), (1,))},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "the same number of replicas",
        ),
        (
            {"assignments": ((1, 2),), "partitions": 1},
            ErrorCode.INVALID_REQUEST,
            "replication factor must be -1",
        ),
        ({"retention_ms": "soon"}, ErrorCode.INVALID_CONFIG, "'soon' is not a whole number"),
        ({"retention_msec": "1"}, ErrorCode.INVALID_CONFIG, "there is no topic config"),
    ],
)
def test_what_cannot_be_created_says_why(
    counts: dict[str, object], error: ErrorCode, said: str
) -> None:
    found = cluster()
    outcome = found.create(**counts).outcome  # type: ignore[arg-type]
    assert outcome.error is error
    assert said in outcome.message
    assert found.image.topic("t") is None


def test_defaults_are_the_clusters() -> None:
    found = cluster()
    found.set_config("num.partitions", "4")
    found.set_config("default.replication.factor", "2")
    result = found.create()
    assert (result.partition_count, result.replication_factor) == (4, 2)
    assert len(found.state(3).replicas) == 2


def test_one_bad_topic_does_not_keep_the_others_back() -> None:
    found = cluster()
    request = CreateTopicsRequest(
        topics=(NewTopic(name="a"), NewTopic(name="b/"), NewTopic(name="c"), NewTopic(name="c"))
    )
    results = found.decide(topics.create_topics, request)
    assert [result.outcome.error for result in results] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert list(found.image.topic_ids) == ["a"]


def test_validate_only_changes_nothing() -> None:
    found = cluster()
    request = CreateTopicsRequest(topics=(NewTopic(name="a"),), validate_only=True)
    decision = found.controller.decide(found.now_ms, topics.create_topics, request)
    assert decision.response[0].outcome.is_good
    assert not decision.records


def test_two_requests_in_flight_cannot_both_take_a_name() -> None:
    found = cluster()
    found.commits_at_once = False
    assert found.create("a").outcome.is_good
    assert found.create("a").outcome.error is ErrorCode.TOPIC_ALREADY_EXISTS
    assert found.create("a_x").outcome.is_good
    assert found.create("a.x").outcome.error is ErrorCode.INVALID_TOPIC_EXCEPTION
    found.replay()
    assert list(found.image.topic_ids) == ["a", "a_x"]


def test_a_name_that_comes_again_has_another_id() -> None:
    found = cluster()
    first = found.create().topic_id
    (gone,) = found.decide(topics.delete_topics, DeleteTopicsRequest(topic_ids=(first,)))
    assert gone.name == "t"
    second = found.create().topic_id
    assert second != first
    assert second[6] >> 4 == 4, "a UUID of version 4"


def test_deleting_what_is_not_there_says_so() -> None:
    found = cluster()
    request = DeleteTopicsRequest(names=("x",), topic_ids=(TopicId(b"x" * 16),))
    by_name, by_id = found.decide(topics.delete_topics, request)
    assert by_name.outcome.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert by_id.outcome.error is ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (NewPartitions(name="x", total_count=3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NewPartitions(name="t", total_count=2), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions(name="t", total_count=1), ErrorCode.INVALID_PARTITIONS),
        (
            NewPartitions(name="t", total_count=4, assignments=((BrokerId(1),),)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (  # one replica where the others have two
            NewPartitions(name="t", total_count=3, assignments=((BrokerId(1),),)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_partitions_that_cannot_be_added(wanted: NewPartitions, error: ErrorCode) -> None:
    found = cluster()
    found.create(partitions=2, replicas=2)
    request = CreatePartitionsRequest(topics=(wanted,))
    (result,) = found.decide(topics.create_partitions, request)
    assert result.outcome.error is error


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_where_groups_lie_neither_goes_nor_grows(name: str) -> None:
    """The number of partitions decides which partition has a group.

    With another number, the state of groups would not be found.
    """
    found = cluster()
    topic_id = found.create(name, partitions=2).topic_id
    more = CreatePartitionsRequest(topics=(NewPartitions(name=name, total_count=3),))
    (grown,) = found.decide(topics.create_partitions, more)
    gone = DeleteTopicsRequest(names=(name,), topic_ids=(topic_id,))
    results = found.decide(topics.delete_topics, gone)
    for result in (grown, *results):
        assert result.outcome.error is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert name in result.outcome.message
    topic = found.image.topic(name)
    assert topic is not None
    assert len(topic.partitions) == 2


def test_added_partitions_leave_those_that_are_there_alone() -> None:
    found = cluster()
    found.create(partitions=2, replicas=2)
    before = [found.state(0), found.state(1)]
    request = CreatePartitionsRequest(topics=(NewPartitions(name="t", total_count=5),))
    found.decide(topics.create_partitions, request)
    assert [found.state(0), found.state(1)] == before
    assert len(found.state(4).replicas) == 2
    leaders = Counter(found.state(i).leader for i in range(5))
    assert max(leaders.values()) - min(leaders.values()) <= 1


def test_a_partition_that_moves_does_not_count_double_for_those_that_are_added() -> None:
    found = cluster(4)
    found.create(assignments=((1, 2),))
    move = Reassignment(
        partition=TopicPartition(TopicName("t"), PartitionIndex(0)),
        replicas=(BrokerId(3), BrokerId(4)),
    )
    found.decide(partitions.alter_reassignments, (move,))
    assert len(found.state(0).replicas) == 4
    request = CreatePartitionsRequest(topics=(NewPartitions(name="t", total_count=2),))
    (result,) = found.decide(topics.create_partitions, request)
    assert result.replication_factor == 2
    assert len(found.state(1).replicas) == 2


def test_a_replica_on_a_fenced_broker_does_not_begin_in_sync() -> None:
    found = cluster()
    found.kill(3, 1, 2)
    found.create(partitions=6, replicas=3)
    for index in range(6):
        state = found.state(index)
        assert set(state.replicas) == {1, 2, 3}
        assert set(state.isr) == {1, 2}
        assert state.leader != 3


def test_many_topics_of_one_partition_spread_their_leaders() -> None:
    found = cluster(5)
    for number in range(25):
        found.create(f"t{number}", partitions=1, replicas=2)
    leaders = Counter(state.leader for state in found.image.partitions())
    assert set(leaders.values()) == {5}


def test_thousands_of_topics_at_once_do_not_stop_the_controller() -> None:
    found = cluster(3)
    for part in range(3):
        new_topics = tuple(
            NewTopic(name=f"topic_{part}_{number}", partition_count=1, replication_factor=3)
            for number in range(3_000)
        )
        began_s = time.process_time()
        results = found.decide(topics.create_topics, CreateTopicsRequest(topics=new_topics))
        assert time.process_time() - began_s < 2.0, "heartbeats wait meanwhile"
        assert all(result.outcome.is_good for result in results)
    leaders = Counter(state.leader for state in found.image.partitions())
    assert set(leaders.values()) == {3_000}


def test_what_one_request_makes_collides_within_it() -> None:
    found = Cluster()
    found.start(1)
    new_topics = (NewTopic(name="a.b", partition_count=1), NewTopic(name="a_b", partition_count=1))
    request = CreateTopicsRequest(topics=new_topics)
    results = found.decide(topics.create_topics, request)
    errors = [result.outcome.error for result in results]
    assert errors == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_a_request_for_too_many_partitions_is_refused_as_a_whole() -> None:
    settings = ControllerSettings(cluster_id=CLUSTER_ID, partitions_per_request_max=5)
    found = Cluster(settings=settings)
    found.start(1)

    def create(*new_topics: NewTopic) -> list[ErrorCode]:
        request = CreateTopicsRequest(topics=new_topics)
        results = found.decide(topics.create_topics, request)
        return [result.outcome.error for result in results]

    by_hand = NewTopic(name="c", assignments=((BrokerId(1),),) * 2)
    many = [NewTopic(name="a", partition_count=3), NewTopic(name="b"), by_hand]
    assert create(*many) == [ErrorCode.POLICY_VIOLATION] * 3
    assert not found.image.topics
    assert create(*many[:2]) == [ErrorCode.NONE] * 2, "num.partitions is 1"

    def grow(**counts: int) -> list[ErrorCode]:
        new_topics = tuple(NewPartitions(name=name, total_count=n) for name, n in counts.items())
        request = CreatePartitionsRequest(topics=new_topics)
        results = found.decide(topics.create_partitions, request)
        return [result.outcome.error for result in results]

    assert grow(a=6, b=4) == [ErrorCode.POLICY_VIOLATION] * 2
    assert grow(a=5, b=4) == [ErrorCode.NONE] * 2


def test_a_topic_has_no_more_partitions_than_its_longest_name_has_room_for() -> None:
    found = Cluster(
        settings=ControllerSettings(cluster_id=CLUSTER_ID, partitions_per_request_max=200_000)
    )
    found.start(1)
    wide = CreateTopicsRequest(topics=(NewTopic(name="x" * 249, partition_count=100_001),))
    (created,) = found.decide(topics.create_topics, wide)
    assert created.outcome.error is ErrorCode.POLICY_VIOLATION
    assert "may have at most 100000 partitions" in created.outcome.message
    one = CreateTopicsRequest(topics=(NewTopic(name="x" * 249, partition_count=1),))
    found.decide(topics.create_topics, one)
    more = CreatePartitionsRequest(topics=(NewPartitions(name="x" * 249, total_count=100_001),))
    (grown,) = found.decide(topics.create_partitions, more)
    assert grown.outcome.error is ErrorCode.POLICY_VIOLATION
    assert "may have at most 100000 partitions" in grown.outcome.message


def test_a_request_that_is_too_large_for_one_batch_does_nothing_and_hurts_nobody() -> None:
    found = Cluster(settings=ControllerSettings(cluster_id=CLUSTER_ID, batch_bytes_max=20_000))
    found.start(1, 2, 3)
    found.commits_at_once = False
    found.create("first")
    with pytest.raises(BatchTooLarge, match="send several smaller requests"):
        found.create("large", partitions=5000, replicas=3)
    assert found.create("large").outcome.is_good, "nothing of the large one is left"
    assert found.create("first").outcome.error is ErrorCode.TOPIC_ALREADY_EXISTS
    found.replay()
    assert list(found.image.topic_ids) == ["first", "large"]
    assert found.controller.image == found.image


def test_a_name_is_free_again_once_the_topic_it_collides_with_is_deleted() -> None:
    """The names that were counted for one request may be used for the next one only if nothing was
    decided in between.
    """
    found = cluster(1)
    assert found.create("a.b").outcome.is_good
    assert found.create("a_b").outcome.error is ErrorCode.INVALID_TOPIC_EXCEPTION
    (deleted,) = found.decide(topics.delete_topics, DeleteTopicsRequest(names=("a.b",)))
    assert deleted.outcome.is_good
    assert found.create("a_b").outcome.is_good
