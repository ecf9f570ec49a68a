"""Creation and deletion of topics, and addition of partitions.

Names follow Kafka's rules (`odradek_protocol.topic_names`). Two names that differ only in `.` and `_` are refused,
because both characters become `_` in names of metrics.

One batch creates a whole topic: the topic, its configs and its partitions. A deletion removes the topic's id from the
metadata, and brokers then delete the files. If a topic is created again with the same name, it has another id.
`placement.py` chooses the brokers of replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from odradek_metadata_quorum.controller.election import Standing
from odradek_metadata_quorum.controller.partitions import assignment_refusal
from odradek_metadata_quorum.controller.placement import (
    Assignments,
    Candidate,
    PlacementError,
    place,
)
from odradek_metadata_quorum.controller.requests import (
    GOOD,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewPartitions,
    NewTopic,
    Outcome,
    TopicResult,
)
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import (
    NO_TOPIC_ID,
    BrokerId,
    MetadataOffset,
    PartitionIndex,
    TopicId,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import (
    INTERNAL_TOPICS,
    ConfigError,
    check_config,
    check_together,
)
from odradek_protocol.metadata.image import PartitionState, TopicState
from odradek_protocol.metadata.records import (
    NO_LEADER,
    Config,
    ConfigResourceType,
    Partition,
    RemoveTopic,
    Topic,
)
from odradek_protocol.topic_names import METADATA_TOPIC, topic_name_error

# The directory name `<topic>-<partition>` has at most 255 characters: 249 of the topic, a hyphen and five digits. So
# the highest partition number is 99,999.
TOPIC_PARTITIONS_MAX: Final = 100_000


class _Refused(Exception):
    """A topic of a request is refused. `outcome` has the error code and the message."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.outcome = Outcome(error=error, message=message)


class _Survey:
    """The numbers of partitions and leaderships in the whole image, which the checks and the placement of new topics
    need.

    Counting them for each topic would block the event loop for seconds when 1,000 topics are added to 10,000. The
    counts stay valid until another request writes records, so all pieces of a large request can use them.
    """

    @staticmethod
    def of(work: Workspace) -> _Survey:
        """Return the counts of the last request if they are still valid. Otherwise compute new counts."""
        survey = work.survey
        if not isinstance(survey, _Survey) or not survey._is_valid(work):
            work.survey = survey = _Survey(work)
        return survey

    def __init__(self, work: Workspace) -> None:
        self._work = work
        self._image = work.image
        self._next_offset = work.next_offset
        self._partitions = sum(len(topic.partitions) for topic in work.image.topics.values())
        self._led = Counter(state.replicas[0] for state in work.image.partitions())
        # Names of topics by their form in names of metrics. The dict is built when it is first needed.
        self._by_metric_name: dict[str, str] | None = None

    def _is_valid(self, work: Workspace) -> bool:
        # When a decision is undone, the working image is replaced by a new object, for which the counts may be wrong.
        return self._image is work.image and self._next_offset == work.next_offset

    def close(self) -> None:
        """End the request, whose new topics are included in the counts. The counts are valid until another decision
        writes records.
        """
        self._next_offset = MetadataOffset(self._work.next_offset + bool(self._work.written))

    def check_count(self, name: str, count: int, *, present: int = 0) -> None:
        """Raise _Refused if `count` more partitions exceed the limit of a topic or of the cluster.

        `present` is the number of partitions that the topic already has.
        """
        settings = self._work.settings
        if present + count > TOPIC_PARTITIONS_MAX:
            raise _Refused(
                ErrorCode.POLICY_VIOLATION,
                f"{name}: a topic may have at most {TOPIC_PARTITIONS_MAX} partitions, not {present + count}",
            )
        if self._partitions + count > settings.partitions_max:
            raise _Refused(
                ErrorCode.POLICY_VIOLATION,
                f"{name}: the cluster has {self._partitions} partitions, and {count} more would exceed the limit of "
                f"{settings.partitions_max}",
            )

    def collision(self, name: str) -> str | None:
        """Return the name of an existing topic that is equal to `name` in names of metrics, or None."""
        if "." not in name and "_" not in name:
            return None
        if self._by_metric_name is None:
            self._by_metric_name = {
                _metric_name(existing): existing for existing in self._work.image.topic_ids
            }
        return self._by_metric_name.get(_metric_name(name))

    def placed(
        self,
        partition_count: int,
        replication_factor: int,
        *,
        present: Sequence[PartitionState] = (),
    ) -> Assignments:
        """Return the replicas of new partitions of a topic that already has the partitions `present`.
        Raises _Refused.
        """
        led_in_topic = Counter(state.replicas[0] for state in present)
        candidates = [
            Candidate(
                broker_id=broker.broker_id,
                host=broker.host_id,
                rack=broker.rack,
                is_live=broker.is_live,
                leader_count=self._led[broker.broker_id],
                topic_leader_count=led_in_topic[broker.broker_id],
            )
            for broker in self._work.image.brokers.values()
        ]
        draw = self._work.draws.randrange(1 << 30)
        try:
            return place(partition_count, replication_factor, candidates, draw=draw)
        except PlacementError as error:
            raise _Refused(ErrorCode.INVALID_REPLICATION_FACTOR, str(error)) from error

    def accept(self, name: str, assignments: Assignments, *, validate_only: bool) -> None:
        """Add a topic's new partitions to the counts, unless the request is only validated."""
        if validate_only:
            return
        self._partitions += len(assignments)
        self._led.update(replicas[0] for replicas in assignments)
        if self._by_metric_name is not None:
            self._by_metric_name[_metric_name(name)] = name


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def create_topics(work: Workspace, request: CreateTopicsRequest) -> tuple[TopicResult, ...]:
    """Create topics. Each topic succeeds or fails independently of the others, and all records are one batch.

    As in Kafka, a request for too many partitions is refused as a whole. Otherwise the order of the topics in the
    request would determine which of them are created.
    """
    total = sum(len(topic.assignments) or _wanted_count(work, topic) for topic in request.topics)
    if (outcome := _too_many(work, request.partitions_elsewhere + total)) is not None:
        return tuple(TopicResult(name=TopicName(t.name), outcome=outcome) for t in request.topics)
    names = Counter(topic.name for topic in request.topics)
    survey = _Survey.of(work)
    results = []
    for topic in request.topics:
        try:
            if names[topic.name] > 1 or topic.name in request.repeated_names:
                raise _Refused(
                    ErrorCode.INVALID_REQUEST, f"topic {topic.name} is named twice in this request"
                )
            result = _create(work, survey, topic, validate_only=request.validate_only)
        except _Refused as refused:
            result = TopicResult(name=TopicName(topic.name), outcome=refused.outcome)
        results.append(result)
    survey.close()
    return tuple(results)


def _wanted_count(work: Workspace, topic: NewTopic) -> int:
    return max(_default(work, topic.partition_count, "num.partitions"), 0)


def _too_many(work: Workspace, total: int) -> Outcome | None:
    most = work.settings.partitions_per_request_max
    if total <= most:
        return None
    return Outcome(
        error=ErrorCode.POLICY_VIOLATION,
        message=f"the request would add {total} partitions, but one request may add only {most}: send several requests",
    )


def _create(
    work: Workspace, survey: _Survey, topic: NewTopic, *, validate_only: bool
) -> TopicResult:
    _check_name(work, survey, topic.name)
    assignments = _assignments(work, survey, topic)
    configs = _check_configs(topic)
    name = TopicName(topic.name)
    survey.accept(name, assignments, validate_only=validate_only)
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


def _check_name(work: Workspace, survey: _Survey, name: str) -> None:
    refusal = topic_name_error(name)
    if refusal is not None:
        raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, refusal)
    if name == METADATA_TOPIC:
        raise _Refused(
            ErrorCode.INVALID_REQUEST,
            f"{name} is the name of the controllers' metadata log: choose another name",
        )
    if work.image.topic(name) is not None:
        raise _Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")
    if (existing := survey.collision(name)) is not None:
        raise _Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name} collides with topic {existing}, because '.' and '_' become the same character in names of metrics",
        )


def _assignments(work: Workspace, survey: _Survey, topic: NewTopic) -> Assignments:
    if topic.assignments:
        if topic.partition_count != -1 or topic.replication_factor != -1:
            raise _Refused(
                ErrorCode.INVALID_REQUEST,
                f"{topic.name}: with replica assignments, the number of partitions and the"
                " replication factor must be -1",
            )
        survey.check_count(topic.name, len(topic.assignments))
        return _by_hand(work, topic.name, topic.assignments)
    partitions = _default(work, topic.partition_count, "num.partitions")
    replicas = _default(work, topic.replication_factor, "default.replication.factor")
    if partitions < 1:
        raise _Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name}: the number of partitions must be 1 or more",
        )
    if replicas < 1:
        raise _Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{topic.name}: the replication factor must be 1 or more",
        )
    survey.check_count(topic.name, partitions)
    return survey.placed(partitions, replicas)


def _default(work: Workspace, count: int, config: str) -> int:
    if count != -1:
        return count
    value = work.config(config)
    assert isinstance(value, int)
    return value


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
                f"{name}: all partitions of a topic must have the same number of replicas",
            )
        if all(work.standing_of(b) < Standing.LIVE for b in replicas):
            raise _Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{name}: none of the brokers {list(replicas)} is live",
            )
    return list(assignments)


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
    records: list[Partition] = []
    in_sync: dict[tuple[BrokerId, ...], tuple[BrokerId, ...]] = {}
    for index, replicas in enumerate(assignments, start=first):
        isr = in_sync.get(replicas)
        if isr is None:
            isr = tuple(b for b in replicas if work.standing_of(b) >= Standing.LIVE)
            in_sync[replicas] = isr
        records.append(
            Partition(
                topic_id=topic_id,
                partition=PartitionIndex(index),
                replicas=replicas,
                isr=isr,
                leader=isr[0] if isr else NO_LEADER,
            )
        )
    work.write(*records)


def create_partitions(work: Workspace, request: CreatePartitionsRequest) -> tuple[TopicResult, ...]:
    """Add partitions to topics. Each topic succeeds or fails independently of the others.

    A request for too many partitions is refused as a whole, as by `create_topics`.
    """
    total = 0
    for new in request.topics:
        if (topic := work.image.topic(new.name)) is not None:
            total += max(new.total_count - len(topic.partitions), 0)
    if (outcome := _too_many(work, request.partitions_elsewhere + total)) is not None:
        return tuple(TopicResult(name=TopicName(t.name), outcome=outcome) for t in request.topics)
    survey = _Survey.of(work)
    results = []
    for new in request.topics:
        try:
            result = _grow(work, survey, new, validate_only=request.validate_only)
        except _Refused as refused:
            result = TopicResult(name=TopicName(new.name), outcome=refused.outcome)
        results.append(result)
    survey.close()
    return tuple(results)


def _grow(
    work: Workspace, survey: _Survey, new: NewPartitions, *, validate_only: bool
) -> TopicResult:
    topic = work.image.topic(new.name)
    if topic is None:
        raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {new.name}")
    if topic.name in INTERNAL_TOPICS:
        raise _Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{topic.name} is an internal topic: its number of partitions cannot change,"
            " because that number determines the partition of each group or transactional id",
        )
    present = len(topic.partitions)
    new_count = new.total_count - present
    if new_count <= 0:
        raise _Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {new.name} has {present} partitions; the new number must be larger, but is {new.total_count}",
        )
    survey.check_count(new.name, new_count, present=present)
    first = topic.partitions[0]
    # During a move, `replicas` also has the replicas that the move removes.
    replication_factor = len(first.replicas) - len(first.removing)
    if new.assignments:
        if len(new.assignments) != new_count:
            raise _Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{new.name}: {new_count} new partitions need {new_count} replica assignments,"
                f" not {len(new.assignments)}",
            )
        if any(len(replicas) != replication_factor for replicas in new.assignments):
            raise _Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{new.name}: the topic's partitions have {replication_factor} replicas, so new "
                "partitions must have the same number",
            )
        assignments = _by_hand(work, new.name, new.assignments)
    else:
        assignments = survey.placed(new_count, replication_factor, present=topic.partitions)
    survey.accept(new.name, assignments, validate_only=validate_only)
    if not validate_only:
        _write_partitions(work, topic.topic_id, present, assignments)
    return TopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_count=new.total_count,
        replication_factor=replication_factor,
    )


def delete_topics(work: Workspace, request: DeleteTopicsRequest) -> tuple[TopicResult, ...]:
    """Delete topics. The results are in the order of the request: topics named by name, then topics named by id."""
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
        result = _delete(work, TopicName(""), work.image.topics.get(topic_id), refusal)
        results.append(result)
    return tuple(results)


def _delete(
    work: Workspace, name: TopicName, topic: TopicState | None, refusal: Outcome
) -> TopicResult:
    if topic is None:
        return TopicResult(name=name, outcome=refusal)
    if topic.name in INTERNAL_TOPICS:
        internal = Outcome(
            error=ErrorCode.INVALID_TOPIC_EXCEPTION,
            message=f"{topic.name} is an internal topic and cannot be deleted",
        )
        return TopicResult(name=topic.name, outcome=internal)
    work.write(RemoveTopic(topic_id=topic.topic_id))
    return TopicResult(name=topic.name, topic_id=topic.topic_id, outcome=GOOD)
