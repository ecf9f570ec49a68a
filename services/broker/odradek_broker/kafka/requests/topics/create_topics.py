"""CreateTopics, and CreatePartitions for existing topics.

The broker validates the form of the request and forwards it to the controller. The controller also limits how many
partitions one request may create; above the limit it refuses the whole request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeAlias

from odradek_broker.access.quotas import MUTATION_RATE
from odradek_broker.kafka.forwarding import ControllerUnavailable, ask_controller, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request, find_topic
from odradek_broker.kafka.requests.administration.describe_configs import describe_topic
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    uuid_of,
)
from odradek_protocol.metadata.image import TopicState
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.topic_names import topic_name_error
from odradek_runtime.budget.refusals import shortened

PARTITIONS_MAX: Final = 10_000
"""The maximum number of partitions that one request counts against the quota controller_mutation_rate."""
_Topic = CreateTopicsRequest.CreatableTopic
_Result = CreateTopicsResponse.CreatableTopicResult
_Config = _Result.CreatableTopicConfigs
_GrownTopic = CreatePartitionsRequest.CreatePartitionsTopic
_GrownResult = CreatePartitionsResponse.CreatePartitionsTopicResult


@handles(CreateTopicsRequest)
async def create_topics(request: Request[CreateTopicsRequest]) -> CreateTopicsResponse:
    """Create topics. Each topic has its own result, so an invalid topic does not prevent the creation of the others."""
    message = request.message
    names = Counter(topic.name for topic in message.topics)
    may_all = request.sees_cluster(Operation.CREATE)
    results: dict[str, _Result] = {}
    command = pb.CreateTopicsRequest(
        validate_only=message.validate_only, timeout_ms=message.timeout_ms
    )
    partition_count = 0
    async for topic in request.in_turns(message.topics):
        error = _error_of(request, topic, may_all=may_all, is_twice=names[topic.name] > 1)
        if error is None:
            command.topics.append(await _new_topic(request, topic))
            partition_count += max(topic.num_partitions, len(topic.assignments), 1)
        else:
            results[topic.name] = _Result(
                name=topic.name, error_code=error[0], error_message=error[1], configs=[]
            )
    if command.topics:
        request.throttle_ms = request.services.quotas.throttle_ms(
            MUTATION_RATE,
            request.session.principal,
            request.client_id,
            min(partition_count, PARTITIONS_MAX),
        )
        await request.pace.turn()
        results |= await _create(request, command)
    return CreateTopicsResponse(topics=[results[name] for name in names])


def _error_of(
    request: AnyRequest, topic: _Topic, *, may_all: bool, is_twice: bool
) -> tuple[ErrorCode, str] | None:
    if not may_all and not request.allows_topic(Operation.CREATE, topic.name):
        return (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "the caller may not create this topic: it needs CREATE on the topic or on the cluster",
        )
    if is_twice:
        return ErrorCode.INVALID_REQUEST, "the request names this topic twice"
    if error := topic_name_error(topic.name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, error
    for config in topic.configs:
        if config.value is None:
            return ErrorCode.INVALID_CONFIG, f"the value of {shortened(config.name)} is missing"
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            return (
                ErrorCode.INVALID_REQUEST,
                "the request has a replica assignment: leave the partition count and the replication factor at -1",
            )
        indexes = sorted(assignment.partition_index for assignment in topic.assignments)
        if indexes != list(range(len(indexes))):
            return (
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "the replica assignment must contain the partitions 0, 1, 2 and so on, without gaps",
            )
        return None
    if topic.num_partitions == 0 or topic.num_partitions < -1:
        return (
            ErrorCode.INVALID_PARTITIONS,
            "the partition count must be at least 1, or -1 for the default (num.partitions)",
        )
    if topic.replication_factor == 0 or topic.replication_factor < -1:
        return (
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "the replication factor must be at least 1, or -1 for the default (default.replication.factor)",
        )
    return None


async def _new_topic(request: AnyRequest, topic: _Topic) -> pb.NewTopic:
    return pb.NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            pb.ReplicaAssignment(broker_ids=assignment.broker_ids)
            async for assignment in request.in_turns(
                sorted(topic.assignments, key=lambda assignment: assignment.partition_index)
            )
        ],
        configs={
            config.name: config.value or "" async for config in request.in_turns(topic.configs)
        },
    )


async def _create(
    request: Request[CreateTopicsRequest], command: pb.CreateTopicsRequest
) -> dict[str, _Result]:
    message = request.message
    ask = ask_controller if message.validate_only else change
    try:
        response = await ask(
            request,
            "CreateTopics",
            command,
            pb.CreateTopicsResponse,
            timeout_ms=message.timeout_ms,
        )
    except ControllerUnavailable as unavailable:
        return {
            topic.name: _Result(
                name=topic.name,
                error_code=unavailable.code,
                error_message=str(unavailable),
                configs=[],
            )
            for topic in command.topics
        }
    described: _Described = {}
    configs = {topic.name: topic.configs for topic in command.topics}
    return {
        created.name: _result(request, created, configs[created.name], described)
        async for created in request.in_turns(response.topics)
    }


_Described: TypeAlias = dict[frozenset[tuple[str, str]], list[_Config]]


def _result(
    request: AnyRequest,
    created: pb.TopicResult,
    configs: Mapping[str, str],
    described: _Described,
) -> _Result:
    """Return the result of one topic.

    `configs` are the configs in the request, because the image does not contain the topic if the request only
    validates. `described` is a cache of described configs, for topics with equal configs.
    """
    is_created = created.error_code == ErrorCode.NONE
    result = _Result(
        name=created.name,
        topic_id=uuid_of(created.topic_id) if created.topic_id else None,
        error_code=created.error_code,
        error_message=created.error_message or None,
        num_partitions=created.partition_count if is_created else -1,
        replication_factor=created.replication_factor if is_created else -1,
        configs=[],
    )
    if not is_created:
        return result
    if not request.sees(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, created.name):
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return result
    image = request.services.image
    own = frozenset(configs.items())
    if own not in described:
        described[own] = [
            _Config(
                name=config.name,
                value=config.value,
                read_only=config.is_read_only,
                config_source=config.source,
                is_sensitive=config.is_sensitive,
            )
            for config in describe_topic(request.services.settings, image, created.name, configs)
        ]
    result.configs = described[own]
    return result


@handles(CreatePartitionsRequest)
async def create_partitions(request: Request[CreatePartitionsRequest]) -> CreatePartitionsResponse:
    """Add partitions to topics. Each topic has one result. A topic that the request names twice is refused."""
    message = request.message
    results: list[_GrownResult] = []
    valid: list[tuple[int, _GrownTopic]] = []
    new_partitions = 0
    counts = Counter(topic.name for topic in message.topics)
    topics = {topic.name: topic for topic in message.topics}
    async for topic in request.in_turns(topics.values()):
        state = find_topic(request, topic.name, None, Operation.ALTER)
        text = None
        if isinstance(state, TopicState) and topic.assignments == []:
            # Null means that the controller chooses the replicas. An empty list would leave the new partitions without
            # replicas.
            state = ErrorCode.INVALID_REPLICA_ASSIGNMENT
            text = (
                "the list of assignments is empty: use null to let the controller choose replicas"
            )
        if counts[topic.name] > 1:
            state = ErrorCode.INVALID_REQUEST
            text = "the request names this topic twice"
        if isinstance(state, ErrorCode):
            result = _GrownResult(name=topic.name, error_code=state, error_message=text)
            results.append(result)
        else:
            valid.append((len(results), topic))
            results.append(_GrownResult(name=topic.name))
            new_partitions += min(max(topic.count - len(state.partitions), 1), PARTITIONS_MAX)
    if valid:
        request.throttle_ms = request.services.quotas.throttle_ms(
            MUTATION_RATE, request.session.principal, request.client_id, new_partitions
        )
        command = pb.CreatePartitionsRequest(
            topics=[
                await _new_partitions(request, topic) async for _, topic in request.in_turns(valid)
            ],
            validate_only=message.validate_only,
            timeout_ms=message.timeout_ms,
        )
        ask = ask_controller if message.validate_only else change
        try:
            response = await ask(
                request,
                "CreatePartitions",
                command,
                pb.CreatePartitionsResponse,
                timeout_ms=message.timeout_ms,
            )
            outcomes = [(result.error_code, result.error_message) for result in response.topics]
        except ControllerUnavailable as unavailable:
            outcomes = [(int(unavailable.code), str(unavailable))] * len(valid)
        pairs = zip(valid, outcomes, strict=True)
        async for (number, _), (code, text) in request.in_turns(pairs):
            results[number].error_code = code
            results[number].error_message = text or None
    return CreatePartitionsResponse(results=results)


async def _new_partitions(request: AnyRequest, topic: _GrownTopic) -> pb.NewPartitions:
    return pb.NewPartitions(
        name=topic.name,
        total_count=topic.count,
        assignments=[
            pb.ReplicaAssignment(broker_ids=assignment.broker_ids)
            async for assignment in request.in_turns(topic.assignments or ())
        ],
    )
