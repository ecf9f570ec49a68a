"""Conversations about the cluster: its brokers, leaders, replicas, features and log directories."""

from __future__ import annotations

from typing import Any

from odradek_protocol.kafka.api_keys import ApiKey
from tests.e2e.kafka.same_answers.conversation import Conversation


def describe_cluster(talk: Conversation) -> None:
    """Describe brokers and controllers."""
    key = ApiKey.DESCRIBE_CLUSTER
    talk.ask("ordinary", key)
    talk.ask("with rights", key, include_cluster_authorized_operations=True)
    talk.ask("with fenced brokers", key, include_fenced_brokers=True)
    for kind in (0, 2, 3, -1):
        talk.ask(f"endpoints {kind}", key, endpoint_type=kind)


def elect_leaders(talk: Conversation) -> None:
    """Elect leaders of partitions that need no election, and of partitions that do not exist."""
    key, topic = ApiKey.ELECT_LEADERS, talk.topic("t", 2)

    def elect(label: str, kind: int, topics: Any) -> None:
        if topics is not None:
            topics = [{"topic": name, "partitions": indexes} for name, indexes in topics]
        talk.ask(label, key, election_type=kind, topic_partitions=topics, timeout_ms=10_000)

    for kind in (0, 1):
        elect(f"kind {kind}, one", kind, [(topic, [0])])
        elect(f"kind {kind}, missing", kind, [(topic, [0, 7, -1])])
        elect(f"kind {kind}, unknown", kind, [("nowhere", [0])])
        elect(f"kind {kind}, no partitions", kind, [(topic, [])])
        elect(f"kind {kind}, none", kind, [])
        elect(f"kind {kind}, twice", kind, [(topic, [0, 0])])
        version = talk.version(key)
        every = talk.once(key, version, election_type=kind, topic_partitions=None, timeout_ms=9_000)
        results = [one for one in every["replica_election_results"] if one["topic"] == topic]
        talk.record(f"kind {kind}, all", every | {"replica_election_results": results})
    for kind in (2, -1):
        elect(f"kind {kind}", kind, [(topic, [0])])


def reassignments(talk: Conversation) -> None:
    """Reassign partitions to the brokers that they already have, and to invalid ones."""
    key, topic = ApiKey.ALTER_PARTITION_REASSIGNMENTS, talk.topic("t", 2)

    def move(label: str, name: str, index: int, replicas: list[int] | None, **more: Any) -> None:
        part = {"partition_index": index, "replicas": replicas}
        topics = [{"name": name, "partitions": [part]}]
        talk.ask(label, key, topics=topics, timeout_ms=10_000, **more)

    for change in (True, False):
        more = {"allow_replication_factor_change": change}
        move(f"same, {change}", topic, 0, [1], **more)
        move(f"cancel, {change}", topic, 0, None, **more)
        move(f"empty, {change}", topic, 0, [], **more)
        move(f"unknown broker, {change}", topic, 0, [99], **more)
        move(f"one more, {change}", topic, 0, [1, 99], **more)
        move(f"twice, {change}", topic, 0, [1, 1], **more)
        move(f"negative, {change}", topic, 0, [-1], **more)
    move("missing partition", topic, 7, [1])
    move("negative partition", topic, -1, [1])
    move("unknown topic", "nowhere", 0, [1])
    move("missing partition, cancel", topic, 7, None)
    talk.ask("none", key, topics=[], timeout_ms=1000)
    talk.ask("no partitions", key, topics=[{"name": topic, "partitions": []}], timeout_ms=1000)
    part = {"partition_index": 0, "replicas": [1]}
    twice = {"name": topic, "partitions": [part, part]}
    talk.ask("partition twice", key, topics=[twice], timeout_ms=1000)

    listing = ApiKey.LIST_PARTITION_REASSIGNMENTS
    for label, topics in (
        ("all", None),
        ("none", []),
        ("one", [{"name": topic, "partition_indexes": [0]}]),
        ("missing", [{"name": topic, "partition_indexes": [7, -1]}]),
        ("unknown", [{"name": "nowhere", "partition_indexes": [0]}]),
        ("no partitions", [{"name": topic, "partition_indexes": []}]),
    ):
        talk.ask(label, listing, topics=topics, timeout_ms=1000)


def log_dirs(talk: Conversation) -> None:
    """Describe log directories."""
    key, topic = ApiKey.DESCRIBE_LOG_DIRS, talk.topic("t", 2)
    for label, topics in (
        ("none", []),
        ("one", [{"topic": topic, "partitions": [0, 1]}]),
        ("missing", [{"topic": topic, "partitions": [0, 7, -1]}]),
        ("unknown", [{"topic": "nowhere", "partitions": [0]}]),
        ("no partitions", [{"topic": topic, "partitions": []}]),
        ("twice", [{"topic": topic, "partitions": [0, 0]}]),
    ):
        talk.ask(label, key, topics=topics)


def features(talk: Conversation) -> None:
    """Send invalid changes of feature levels."""
    key = ApiKey.UPDATE_FEATURES

    def update(label: str, *features: tuple[str, int, int], validate_only: bool = True) -> None:
        items = [
            {
                "feature": name,
                "max_version_level": level,
                "upgrade_type": kind,
                "allow_downgrade": kind > 1,
            }
            for name, level, kind in features
        ]
        version = talk.version(key)
        if version == 0:
            validate_only = False
        talk.ask(label, key, feature_updates=items, timeout_ms=10_000, validate_only=validate_only)

    update("none")
    update("unknown", ("nonsense", 1, 1))
    update("empty name", ("", 1, 1))
    update("same", ("transaction.version", 2, 1))
    update("too high", ("transaction.version", 99, 1))
    update("negative", ("transaction.version", -1, 1))
    update("too high and unknown", ("transaction.version", 99, 1), ("nonsense", 1, 1))
    update("metadata too high", ("metadata.version", 999, 1))
    if talk.version(key) >= 1:
        update("twice", ("group.version", 1, 1), ("group.version", 1, 1))
        for kind in (0, 2, 3, 4, -1):
            update(f"kind {kind}", ("group.version", 1, kind))
        update("down without asking for it", ("group.version", 0, 1))
        update("down", ("group.version", 0, 2))


def quorum(talk: Conversation) -> None:
    """Describe the quorum, and partitions that do not belong to a quorum."""
    key = ApiKey.DESCRIBE_QUORUM
    for label, name, index in (
        ("other topic", "nowhere", 0),
        ("other partition", "__cluster_metadata", 1),
    ):
        topics = [{"topic_name": name, "partitions": [{"partition_index": index}]}]
        talk.ask(label, key, topics=topics)
    talk.ask("none", key, topics=[])
    for broker in (99, -1):
        talk.ask(f"unregister {broker}", ApiKey.UNREGISTER_BROKER, broker_id=broker)


TALKS = (describe_cluster, elect_leaders, reassignments, log_dirs, features, quorum)
