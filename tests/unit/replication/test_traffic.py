"""The bytes by topic: replicas of a topic share them, and the number of topics in the metrics is bounded."""

from __future__ import annotations

from odradek_broker.replication.counters import OTHER_TOPICS, TOPICS_MAX, Traffic
from odradek_protocol.identity import TopicName


def bytes_by_topic(traffic: Traffic) -> dict[str, tuple[int, int]]:
    return {topic: (seen.bytes_in, seen.bytes_out) for topic, seen in traffic.items()}


def test_replicas_of_a_topic_share_its_traffic_until_the_last_is_gone() -> None:
    traffic = Traffic()
    first, second = traffic.of(TopicName("orders")), traffic.of(TopicName("orders"))
    first.bytes_in += 3
    second.bytes_in += 4
    second.bytes_out += 5
    assert bytes_by_topic(traffic) == {"orders": (7, 5)}
    del first
    assert bytes_by_topic(traffic) == {"orders": (7, 5)}
    del second
    assert bytes_by_topic(traffic) == {}


def test_topics_beyond_the_bound_share_one_series() -> None:
    traffic = Traffic()
    kept = [traffic.of(TopicName(f"t{n}")) for n in range(TOPICS_MAX)]
    others = [traffic.of(TopicName(name)) for name in ("more", "most")]
    assert len(bytes_by_topic(traffic)) == TOPICS_MAX
    for seen in others:
        seen.bytes_out += 2
    assert bytes_by_topic(traffic)[OTHER_TOPICS] == (0, 4)
    assert len(bytes_by_topic(traffic)) == TOPICS_MAX + 1
    kept.pop()
    assert traffic.of(TopicName("late")) is not others[0], "a place became free"


def test_no_topic_can_have_the_name_of_the_others() -> None:
    assert set(OTHER_TOPICS) & set("()")
