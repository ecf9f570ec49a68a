"""Conversations about topics: metadata, creation, additional partitions, and deletion."""

from __future__ import annotations

import uuid
from typing import Any

from odradek_protocol.kafka.api_keys import ApiKey
from tests.e2e.kafka.same_answers.conversation import Conversation

_NO_ID = bytes(16)
_UNKNOWN_ID = uuid.UUID(int=0xABCDEF)
_AUTO_CREATE_FLAG = 4  # requests of earlier versions create the topics that they name
_CONFIGS = ("retention.ms", "cleanup.policy", "segment.bytes", "compression.type")
ODD_NAMES = ("", ".", "..", "a b", "a/b", "é", "x" * 249, "x" * 250, "*", "__consumer_offsets")


def metadata(talk: Conversation) -> None:
    """Request metadata of topics by name and by id."""
    key, topic = ApiKey.METADATA, talk.topic("t", 3)
    topic_id, version = talk.topic_id(topic), talk.version(ApiKey.METADATA)

    def by_name(*names: str) -> list[dict[str, Any]]:
        return [{"name": name, "topic_id": _NO_ID} for name in names]

    nowhere = talk.named("nowhere")
    talk.ask("one", key, topics=by_name(topic), allow_auto_topic_creation=False)
    talk.ask("twice", key, topics=by_name(topic, topic), allow_auto_topic_creation=False)
    if version >= _AUTO_CREATE_FLAG:
        talk.ask("unknown", key, topics=by_name(nowhere), allow_auto_topic_creation=False)
    if version >= 1:
        talk.ask("none", key, topics=[], allow_auto_topic_creation=False)
    for name in ODD_NAMES:
        label = f"named {name[:5]!r} {len(name)}"
        if name == "__consumer_offsets" or (version < _AUTO_CREATE_FLAG and len(name) == 249):
            continue
        talk.ask(label, key, topics=by_name(name), allow_auto_topic_creation=False)
    for rights in (True, False):
        talk.ask(
            f"rights {rights}",
            key,
            topics=by_name(topic),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=rights,
            include_topic_authorized_operations=rights,
        )
    if version >= _AUTO_CREATE_FLAG:
        talk.ask(
            "unknown with rights",
            key,
            topics=by_name(nowhere),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
    if version >= 10:
        for label, given, an_id in (
            ("by id", None, topic_id),
            ("by unknown id", None, _UNKNOWN_ID),
            ("by name and id", topic, topic_id),
            ("by name and wrong id", topic, _UNKNOWN_ID),
            ("by unknown name and id", nowhere, topic_id),
            ("by null and no id", None, _NO_ID),
        ):
            topics = [{"name": given, "topic_id": an_id}]
            talk.ask(label, key, topics=topics, allow_auto_topic_creation=False)
        mixed = [{"name": None, "topic_id": topic_id}, {"name": nowhere, "topic_id": _NO_ID}]
        talk.ask("by id and by name", key, topics=mixed, allow_auto_topic_creation=False)
        talk.ask("id twice", key, topics=[{"name": None, "topic_id": topic_id}] * 2)


def auto_creation(talk: Conversation) -> None:
    """Request metadata of topics that a broker may create automatically."""
    key = ApiKey.METADATA
    for name in ("", "a b", "x" * 250):
        topics = [{"name": name, "topic_id": _NO_ID}]
        talk.ask(f"auto {name[:5]!r}", key, topics=topics, allow_auto_topic_creation=True)


def create_topics(talk: Conversation) -> None:
    """Create topics, by valid and invalid requests."""
    key = ApiKey.CREATE_TOPICS

    def topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
        return {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replicas,
            **more,
        }

    def create(label: str, *topics: dict[str, Any], **more: Any) -> None:
        fields = {"topics": [*topics], "timeout_ms": 10_000} | more
        response = talk.once(key, talk.version(key), **fields)
        if isinstance(response, dict):
            for result in response["topics"]:
                if result.get("configs"):
                    kept = [one for one in result["configs"] if one["name"] in _CONFIGS]
                    result["configs"] = kept
        talk.record(f"{key.name} {talk.version(key)}: {label}", response)

    create("none")
    create("one", topic(talk.named("one"), 2))
    create("again", topic(talk.named("one"), 2))
    create("validated", topic(talk.named("checked"), 2), validate_only=True)
    create("validated again", topic(talk.named("checked"), 2), validate_only=True)
    create("validated existing", topic(talk.named("one"), 2), validate_only=True)
    create("twice", topic(talk.named("twice")), topic(talk.named("twice"), 2))
    create(
        "twice and one",
        topic(talk.named("twice")),
        topic(talk.named("twice"), 2),
        topic(talk.named("beside")),
    )
    create("defaults", topic(talk.named("defaults"), -1, -1))
    create("colliding", topic(talk.named("one").replace("-", "_")))
    create("colliding 1", topic(talk.named("a.b")))
    create("colliding 2", topic(talk.named("a_b")))
    for name in ODD_NAMES[:-1]:
        create(f"named {name[:5]!r} {len(name)}", topic(name), validate_only=True)
    create("internal", topic("__consumer_offsets"))
    create("metadata topic", topic("__cluster_metadata"), validate_only=True)
    for count in (0, -2, 1 << 30, (1 << 31) - 1):
        create(f"partitions {count}", topic(talk.named("p"), count), validate_only=True)
    create("10001 partitions", topic(talk.named("p"), 10_001), validate_only=True)
    for count in (0, -2, 2, 32_767):
        create(f"replicas {count}", topic(talk.named("r"), 1, count), validate_only=True)
    for label, partitions, replicas, assignments in (
        ("right", -1, -1, [(0, [1])]),
        ("two", -1, -1, [(0, [1]), (1, [1])]),
        ("with partitions", 1, -1, [(0, [1])]),
        ("with replicas", -1, 1, [(0, [1])]),
        ("with both", 1, 1, [(0, [1])]),
        ("gap", -1, -1, [(0, [1]), (2, [1])]),
        ("from one", -1, -1, [(1, [1])]),
        ("negative", -1, -1, [(-1, [1])]),
        ("duplicate", -1, -1, [(0, [1]), (0, [1])]),
        ("no brokers", -1, -1, [(0, [])]),
        ("unknown broker", -1, -1, [(0, [99])]),
        ("negative broker", -1, -1, [(0, [-1])]),
        ("broker twice", -1, -1, [(0, [1, 1])]),
        ("uneven", -1, -1, [(0, [1]), (1, [1, 99])]),
    ):
        items = [{"partition_index": index, "broker_ids": ids} for index, ids in assignments]
        one = topic(talk.named("assigned"), partitions, replicas, assignments=items)
        create(f"assignment {label}", one, validate_only=True)
    for name, value in (
        ("retention.ms", "1000"),
        ("retention.ms", "-1"),
        ("retention.ms", "-2"),
        ("retention.ms", "x"),
        ("retention.ms", ""),
        ("retention.ms", None),
        ("retention.ms", " 7 "),
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", "nothing"),
        ("cleanup.policy", ""),
        ("compression.type", "zstd"),
        ("compression.type", "rar"),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", "5"),
        ("unclean.leader.election.enable", "yes"),
        ("unclean.leader.election.enable", "TRUE"),
        ("message.timestamp.type", "LogAppendTime"),
        ("message.timestamp.type", "Never"),
        ("segment.bytes", "1"),
        ("max.message.bytes", "0"),
        ("min.cleanable.dirty.ratio", "2"),
        ("no.such.config", "1"),
        ("", "1"),
    ):
        one = topic(talk.named("configured"), configs=[{"name": name, "value": value}])
        create(f"config {name}={value}", one, validate_only=True)
    both = [{"name": "retention.ms", "value": "1"}, {"name": "retention.ms", "value": "2"}]
    create("config twice", topic(talk.named("configured"), configs=both), validate_only=True)
    create("some wrong", topic(talk.named("good")), topic("a b"), topic(talk.named("bad"), 0))
    create("no time", topic(talk.named("quick")), timeout_ms=0)
    create("negative time", topic(talk.named("quicker")), timeout_ms=-1)


def delete_topics(talk: Conversation) -> None:
    """Delete topics by name and by id."""
    key, version = ApiKey.DELETE_TOPICS, talk.version(ApiKey.DELETE_TOPICS)

    def delete(label: str, *topics: tuple[str | None, Any]) -> None:
        items = [{"name": name, "topic_id": an_id} for name, an_id in topics]
        names = [name or "" for name, _ in topics]
        talk.ask(label, key, topics=items, topic_names=names, timeout_ms=10_000)

    delete("none")
    delete("unknown", ("nowhere", _NO_ID))
    delete("empty name", ("", _NO_ID))
    delete("bad name", ("a b", _NO_ID))
    delete("one", (talk.topic("one"), _NO_ID))
    delete("again", (talk.named("one"), _NO_ID))
    twice = talk.topic("twice")
    delete("twice", (twice, _NO_ID), (twice, _NO_ID))
    delete("after twice", (twice, _NO_ID))
    delete("one and unknown", (talk.topic("good"), _NO_ID), ("nowhere", _NO_ID))
    if version >= 6:
        by_id = talk.topic("by-id")
        topic_id = talk.topic_id(by_id)
        delete("unknown id", (None, _UNKNOWN_ID))
        delete("neither", (None, _NO_ID))
        delete("name and id", (by_id, topic_id))
        delete("name and other id", (by_id, _UNKNOWN_ID))
        delete("name and the same id", (by_id, _NO_ID), (None, topic_id))
        delete("id twice", (None, topic_id), (None, topic_id))
        delete("by id", (None, topic_id))
        delete("by id again", (None, topic_id))


def create_partitions(talk: Conversation) -> None:
    """Add partitions to topics, and try to remove partitions."""
    key, topic = ApiKey.CREATE_PARTITIONS, talk.topic("t", 2)

    def grow(label: str, *topics: tuple[str, int, Any], validate_only: bool = False) -> None:
        items = [
            {
                "name": name,
                "count": count,
                "assignments": None
                if brokers is None
                else [{"broker_ids": each} for each in brokers],
            }
            for name, count, brokers in topics
        ]
        talk.ask(label, key, topics=items, timeout_ms=10_000, validate_only=validate_only)

    grow("none")
    grow("unknown", ("nowhere", 3, None))
    grow("empty name", ("", 3, None))
    for count in (2, 1, 0, -1, 1 << 30, 10_003):
        grow(f"to {count}", (topic, count, None), validate_only=True)
    for label, brokers in (
        ("right", [[1]]),
        ("too few", []),
        ("too many", [[1], [1]]),
        ("unknown broker", [[9]]),
        ("no broker", [[]]),
        ("broker twice", [[1, 1]]),
        ("more replicas", [[1, 9]]),
        ("negative broker", [[-1]]),
    ):
        grow(f"assignment {label}", (topic, 3, brokers), validate_only=True)
    grow("twice", (topic, 3, None), (topic, 4, None))
    grow("validated", (topic, 3, None), validate_only=True)
    grow("really", (topic, 3, None))
    grow("again", (topic, 3, None))
    grow("one wrong", (topic, 4, None), ("nowhere", 4, None))


def describe_topic_partitions(talk: Conversation) -> None:
    """Describe partitions in pages."""
    key, topic = ApiKey.DESCRIBE_TOPIC_PARTITIONS, talk.topic("t", 5)

    def describe(label: str, *names: str, limit: int = 2000, cursor: Any = None) -> None:
        topics = [{"name": name} for name in names]
        if cursor is not None:
            cursor = {"topic_name": cursor[0], "partition_index": cursor[1]}
        talk.ask(label, key, topics=topics, response_partition_limit=limit, cursor=cursor)

    other = talk.topic("u", 2)
    describe("one", topic)
    describe("two", topic, other)
    describe("twice", topic, topic)
    describe("unknown", "nowhere")
    describe("known and unknown", topic, "nowhere")
    describe("bad name", "a b")
    describe("empty name", "")
    for limit in (1, 3, 5, 6, 0, -1):
        describe(f"limit {limit}", topic, other, limit=limit)
    describe("from 2", topic, cursor=(topic, 2))
    describe("from the end", topic, other, cursor=(topic, 5))
    describe("beyond the end", topic, other, cursor=(topic, 50))
    describe("from a negative one", topic, cursor=(topic, -1))
    describe("from the second topic", topic, other, cursor=(other, 1))
    describe("from a topic that is not asked", topic, cursor=("a", 0))
    describe("from a topic behind", topic, cursor=("zzzz", 0))


TALKS = (
    metadata,
    auto_creation,
    create_topics,
    delete_topics,
    create_partitions,
    describe_topic_partitions,
)
