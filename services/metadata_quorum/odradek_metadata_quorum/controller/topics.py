"""Topics are created, grow and go: names, counts, placement, configs at birth.

Names follow Kafka's rules (Topic.validate): 1 to 249 of `[a-zA-Z0-9._-]`, neither `.` nor `..`; and
two names that differ only in `.` and `_` collide, because metrics write both as `_`.

A topic is created whole in one batch: its record, its configs, its partitions. Deleting removes the
id; brokers delete the files (REPLICATION.md section 8). A name that comes again has another id.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from odradek_metadata_quorum.controller.decision import GOOD, Outcome
from odradek_metadata_quorum.controller.election import Standing
from odradek_metadata_quorum.controller.placement import Candidate, PlacementError, place
from odradek_metadata_quorum.controller.reassignment import assignment_refusal
from odradek_metadata_quorum.controller.requests import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewPartitions,
    NewTopic,
    TopicResult,
)
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import (
    NO_TOPIC_ID,
    BrokerId,
    PartitionIndex,
    TopicId,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import ConfigError, check_config, check_together
from odradek_protocol.metadata.image import TopicState
from odradek_protocol.metadata.records import (
    NO_LEADER,
    Config,
    ConfigResourceType,
    Partition,
    RemoveTopic,
    Topic,
)

Assignments = list[tuple[BrokerId, ...]]
NAME_CHARACTERS_MAX: Final = 249
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


class _Refused(Exception):
    """This topic cannot be; carries why."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.outcome = Outcome(error=error, message=message)


def create_topics(work: Workspace, request: CreateTopicsRequest) -> tuple[TopicResult, ...]:
    """Create topics, each for itself, those that are good in one batch."""
    names = Counter(topic.name for topic in request.topics)
    budget = work.settings.partitions_per_request_max
    results = []
    for topic in request.topics:
        try:
            if names[topic.name] > 1:
                raise _Refused(ErrorCode.INVALID_REQUEST, f"{topic.name} is twice in this request")
            result = _create(work, topic, budget, validate_only=request.validate_only)
            budget -= result.partition_count
        except _Refused as refused:
            result = TopicResult(name=TopicName(topic.name), outcome=refused.outcome)
        results.append(result)
    return tuple(results)


def _create(work: Workspace, topic: NewTopic, budget: int, *, validate_only: bool) -> TopicResult:
    _check_name(work, topic.name)
    assignments = _assignments(work, topic, budget)
    configs = _check_configs(topic)
    name = TopicName(topic.name)
    topic_id = NO_TOPIC_ID
    if not validate_only:
        topic_id = _new_topic_id(work)
        work.write(Topic(topic_id=topic_id, name=name))
        for key, value in sorted(configs.items()):
            work.write(
                Config(
                    resource_type=ConfigResourceType.TOPIC,
                    resource_name=name,
                    name=key,
                    value=value,
                )
            )
        _write_partitions(work, topic_id, 0, assignments)
    return TopicResult(
        name=name,
        topic_id=topic_id,
        partition_count=len(assignments),
        replication_factor=len(assignments[0]),
    )


def name_refusal(name: str) -> str | None:
    """What is wrong with a topic's name, for people; None: nothing."""
    if not name:
        return "a topic's name is not empty"
    if name in (".", ".."):
        return f"a topic's name is neither . nor .., this one is {name}"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"a topic's name has at most {NAME_CHARACTERS_MAX} characters, this has {len(name)}"
    if _NAME.fullmatch(name) is None:
        return f"{name!r}: a topic's name has only ASCII letters, digits, '.', '_' and '-'"
    return None


def _check_name(work: Workspace, name: str) -> None:
    refusal = name_refusal(name)
    if refusal is not None:
        raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, refusal)
    if work.image.topic(name) is not None:
        raise _Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")
    if "." in name or "_" in name:
        collided = name.replace(".", "_")
        for other in work.image.topic_ids:
            if other.replace(".", "_") == collided:
                raise _Refused(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"{name} collides with topic {other}: '.' and '_' are the same in the names "
                    "of metrics",
                )


def _assignments(work: Workspace, topic: NewTopic, budget: int) -> Assignments:
    if topic.assignments:
        if topic.partition_count != -1 or topic.replication_factor != -1:
            raise _Refused(
                ErrorCode.INVALID_REQUEST,
                f"{topic.name}: with assignments by hand both counts must be -1",
            )
        _check_count(work, topic.name, len(topic.assignments), budget)
        return _by_hand(work, topic.name, topic.assignments)
    partitions = _default(work, topic.partition_count, "num.partitions")
    replicas = _default(work, topic.replication_factor, "default.replication.factor")
    if partitions < 1:
        raise _Refused(
            ErrorCode.INVALID_PARTITIONS, f"{topic.name}: a topic has one partition or more"
        )
    if replicas < 1:
        raise _Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{topic.name}: the replication factor is 1 or more",
        )
    _check_count(work, topic.name, partitions, budget)
    return _placed(work, partitions, replicas)


def _default(work: Workspace, count: int, config: str) -> int:
    if count != -1:
        return count
    value = work.config(config)
    assert isinstance(value, int)
    return value


def _check_count(work: Workspace, name: str, count: int, budget: int) -> None:
    if count > budget:
        raise _Refused(
            ErrorCode.POLICY_VIOLATION,
            f"{name}: {count} more partitions are too many, one request may add "
            f"{work.settings.partitions_per_request_max}",
        )
    present = sum(len(topic.partitions) for topic in work.image.topics.values())
    if present + count > work.settings.partitions_max:
        raise _Refused(
            ErrorCode.POLICY_VIOLATION,
            f"{name}: the cluster has {present} partitions, it may have "
            f"{work.settings.partitions_max}",
        )


def _by_hand(
    work: Workspace, name: str, assignments: tuple[tuple[BrokerId, ...], ...]
) -> Assignments:
    for replicas in assignments:
        refusal = assignment_refusal(work, replicas)
        if refusal is not None:
            raise _Refused(refusal.error, f"{name}: {refusal.message}")
        if len(replicas) != len(assignments[0]):
            raise _Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{name}: all partitions have equally many replicas",
            )
        if all(work.standing_of(b) < Standing.LIVE for b in replicas):
            raise _Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{name}: none of the brokers {list(replicas)} is live",
            )
    return list(assignments)


def _placed(work: Workspace, partition_count: int, replication_factor: int) -> Assignments:
    led = Counter(state.replicas[0] for state in work.image.partitions())
    candidates = [
        Candidate(
            broker_id=broker.broker_id,
            rack=broker.rack,
            is_live=broker.is_live,
            leader_count=led[broker.broker_id],
        )
        for broker in work.image.brokers.values()
    ]
    draw = work.draws.randrange(1 << 30)
    try:
        return place(partition_count, replication_factor, candidates, draw=draw)
    except PlacementError as error:
        raise _Refused(ErrorCode.INVALID_REPLICATION_FACTOR, str(error)) from error


def _check_configs(topic: NewTopic) -> dict[str, str]:
    configs = dict(topic.configs)
    try:
        for name, value in configs.items():
            check_config(ConfigResourceType.TOPIC, name, value)
        check_together(configs)
    except ConfigError as error:
        raise _Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
    return configs


def _new_topic_id(work: Workspace) -> TopicId:
    while True:
        drawn = bytearray(work.draws.randbytes(16))
        drawn[6], drawn[8] = drawn[6] & 0x0F | 0x40, drawn[8] & 0x3F | 0x80  # a UUID, version 4
        topic_id = TopicId(bytes(drawn))
        if topic_id not in work.image.topics:
            return topic_id


def _write_partitions(
    work: Workspace, topic_id: TopicId, first: int, assignments: Assignments
) -> None:
    for index, replicas in enumerate(assignments, start=first):
        isr = tuple(b for b in replicas if work.standing_of(b) >= Standing.LIVE)
        work.write(
            Partition(
                topic_id=topic_id,
                partition=PartitionIndex(index),
                replicas=replicas,
                isr=isr,
                leader=isr[0] if isr else NO_LEADER,
            )
        )


def create_partitions(work: Workspace, request: CreatePartitionsRequest) -> tuple[TopicResult, ...]:
    """Add partitions; those that are there keep their replicas."""
    budget = work.settings.partitions_per_request_max
    results = []
    for wanted in request.topics:
        try:
            result = _grow(work, wanted, budget, validate_only=request.validate_only)
        except _Refused as refused:
            result = TopicResult(name=TopicName(wanted.name), outcome=refused.outcome)
        results.append(result)
    return tuple(results)


def _grow(
    work: Workspace, wanted: NewPartitions, budget: int, *, validate_only: bool
) -> TopicResult:
    topic = work.image.topic(wanted.name)
    if topic is None:
        raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {wanted.name}")
    present = len(topic.partitions)
    more = wanted.total_count - present
    if more <= 0:
        raise _Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {wanted.name} has {present} partitions, {wanted.total_count} are not more",
        )
    _check_count(work, wanted.name, more, budget)
    replication_factor = len(topic.partitions[0].replicas)
    if wanted.assignments:
        if len(wanted.assignments) != more:
            raise _Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{wanted.name}: {more} new partitions, {len(wanted.assignments)} assignments",
            )
        assignments = _by_hand(work, wanted.name, wanted.assignments)
    else:
        assignments = _placed(work, more, replication_factor)
    if not validate_only:
        _write_partitions(work, topic.topic_id, present, assignments)
    return TopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_count=wanted.total_count,
        replication_factor=replication_factor,
    )


def delete_topics(work: Workspace, request: DeleteTopicsRequest) -> tuple[TopicResult, ...]:
    """Delete topics by name, then by id."""
    results = []
    for name in request.names:
        refusal = Outcome(
            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message=f"there is no topic {name}"
        )
        results.append(_delete(work, TopicName(name), work.image.topic(name), refusal))
    for topic_id in request.topic_ids:
        refusal = Outcome(
            error=ErrorCode.UNKNOWN_TOPIC_ID, message=f"there is no topic with id {topic_id.hex()}"
        )
        found = _delete(work, TopicName(""), work.image.topics.get(topic_id), refusal)
        results.append(found)
    return tuple(results)


def _delete(
    work: Workspace, name: TopicName, topic: TopicState | None, refusal: Outcome
) -> TopicResult:
    if topic is None:
        return TopicResult(name=name, outcome=refusal)
    work.write(RemoveTopic(topic_id=topic.topic_id))
    return TopicResult(name=topic.name, topic_id=topic.topic_id, outcome=GOOD)
