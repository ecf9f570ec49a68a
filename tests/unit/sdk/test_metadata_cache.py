"""The metadata cache never replaces newer information on leaders by older information."""

from __future__ import annotations

from odradek.cluster.metadata_cache import Change, MetadataCache
from odradek.partitions import TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import common_pb2

T0 = TopicPartition("t", 0)
ID_1, ID_2 = b"1" * 16, b"2" * 16


def news(
    *leaders: tuple[int, int],
    offset: int = 1,
    topic_id: bytes = ID_1,
    brokers: tuple[int, ...] = (1, 2),
) -> pb.MetadataResponse:
    """Return metadata of topic t with one partition for each (leader, epoch)."""
    response = pb.MetadataResponse(metadata_offset=offset)
    for broker_id in brokers:
        response.brokers.add(broker_id=broker_id, grpc_endpoint=f"b{broker_id}:1")
    if leaders:
        topic = response.topics.add(name="t", topic_id=topic_id)
        for index, (leader, epoch) in enumerate(leaders):
            topic.partitions.add(
                partition=index, leader_id=leader, leader_epoch=epoch, isr=[leader]
            )
    return response


def test_a_leader_is_found_by_its_endpoint() -> None:
    cache = MetadataCache()
    change = cache.apply(news((1, 0), (2, 0)))
    assert change.leaders == {T0, ("t", 1)}
    assert change.topics == {"t"}
    assert cache.leader_endpoint(T0) == (1, "b1:1")


def test_leader_epochs_never_go_back_whoever_tells_it() -> None:
    cache = MetadataCache()
    cache.apply(news((2, 5), offset=10))
    assert not cache.apply(news((1, 4), offset=11)).leaders
    assert cache.leader_endpoint(T0) == (2, "b2:1")
    assert cache.apply(news((1, 6), offset=3)).leaders == {T0}, "a higher epoch is newer, always"


def test_news_of_the_same_epoch_updates_the_replicas_without_a_change_of_leader() -> None:
    cache = MetadataCache()
    cache.apply(news((1, 5)))
    update = news((1, 5), offset=2)
    update.topics[0].partitions[0].isr[:] = [1, 2]
    assert not cache.apply(update).leaders
    partition = cache.partition(T0)
    assert partition is not None
    assert partition.isr == (1, 2)


def test_a_topic_made_anew_replaces_its_namesake_but_not_the_other_way_round() -> None:
    cache = MetadataCache()
    cache.apply(news((1, 9), offset=5))
    assert cache.apply(news((2, 0), offset=8, topic_id=ID_2)).leaders == {T0}
    assert not cache.apply(news((1, 10), offset=6)).leaders
    assert cache.topics["t"].topic_id == ID_2


def test_a_broker_that_lags_cannot_delete_a_topic_that_it_does_not_know_yet() -> None:
    cache = MetadataCache()
    cache.apply(news((1, 0), offset=7))
    unknown = pb.MetadataResponse(metadata_offset=6)
    unknown.topics.add(name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert not cache.apply(unknown).topics
    unknown.metadata_offset = 8
    assert cache.apply(unknown).topics == {"t"}
    assert cache.topic("t") is None


def test_a_broker_that_lags_cannot_take_away_a_topic_that_was_made_anew() -> None:
    cache = MetadataCache()
    cache.apply(news((1, 0), offset=7, topic_id=ID_2))
    assert not cache.remove(["t"], as_of=6).topics
    assert cache.remove(["t"], as_of=8).leaders == {T0}


def test_a_hint_is_taken_only_when_it_is_newer_and_knows_its_endpoint_itself() -> None:
    cache = MetadataCache()
    cache.apply(news((1, 3)))
    stale = common_pb2.LeaderHint(leader_id=2, leader_epoch=3, endpoint="b2:1")
    assert not cache.hint(T0, stale).leaders
    fresh = common_pb2.LeaderHint(leader_id=9, leader_epoch=4, endpoint="new:1")
    assert cache.hint(T0, fresh).leaders == {T0}
    assert cache.leader_endpoint(T0) == (9, "new:1")


def test_an_older_list_of_brokers_does_not_replace_a_newer_one() -> None:
    cache = MetadataCache()
    cache.apply(news(offset=5, brokers=(1, 2, 3)))
    cache.apply(news(offset=4, brokers=(1,)))
    assert sorted(cache.brokers) == [1, 2, 3]


def test_a_leader_whose_address_becomes_known_or_changes_is_a_change() -> None:
    """No other event wakes the requests that wait for the leader."""
    cache = MetadataCache()
    cache.apply(news((3, 0), (1, 0)))
    assert cache.leader_endpoint(T0) is None
    assert cache.apply(news(offset=2, brokers=(1, 2, 3))).leaders == {T0}
    assert not cache.apply(news(offset=3, brokers=(1, 2))).leaders, "it only left"
    moved = news(offset=4, brokers=(2, 3))
    moved.brokers.add(broker_id=1, grpc_endpoint="elsewhere:1")
    assert cache.apply(moved).leaders == {T0, ("t", 1)}


def test_partitions_that_are_added_are_a_change() -> None:
    cache = MetadataCache()
    cache.apply(news((1, 0)))
    change = cache.apply(news((1, 0), (2, 0), offset=2))
    assert change.topics == {"t"}
    assert change.leaders == {("t", 1)}


def test_a_partition_that_was_not_told_has_no_leader() -> None:
    cache = MetadataCache()
    told = news((1, 0), (1, 0), (1, 0))
    del told.topics[0].partitions[1]
    cache.apply(told)
    assert cache.leader_endpoint(TopicPartition("t", 1)) is None
    assert cache.leader_endpoint(TopicPartition("t", 2)) == (1, "b1:1")


def test_no_reader_sees_a_part_of_a_topic() -> None:
    cache, change = MetadataCache(), Change()
    steps = cache.apply_in_steps(news((1, 0), (2, 0), (1, 0)), change)
    for _ in range(3):
        next(steps)
        assert cache.topic("t") is None
        assert not change.leaders
    for _ in steps:
        pass
    topic = cache.topic("t")
    assert topic is not None
    assert len(topic.partitions) == 3
    assert change.topics == {"t"}


def test_what_arrives_between_two_steps_is_judged_by_its_epochs() -> None:
    cache = MetadataCache()
    steps = cache.apply_in_steps(news((1, 4), (1, 4)), Change())
    next(steps)
    cache.apply(news((2, 5), (2, 3), offset=2))
    for _ in steps:
        pass
    assert cache.leader_endpoint(T0) == (2, "b2:1")
    assert cache.leader_endpoint(TopicPartition("t", 1)) == (1, "b1:1")
