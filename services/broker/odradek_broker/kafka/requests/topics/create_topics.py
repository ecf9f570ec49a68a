"""CreateTopics, and CreatePartitions for existing topics: validate the request's form; the controller decides.

The controller also bounds how many partitions one request may create: it refuses all or none.
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

PARTITIONS_MAX: Final = 10_000
"""The most partitions for which controller_mutation_rate charges one request."""
_Topic = CreateTopicsRequest.CreatableTopic
_Result = CreateTopicsResponse.CreatableTopicResult
_Config = _Result.CreatableTopicConfigs
_GrownTopic = CreatePartitionsRequest.CreatePartitionsTopic
_GrownResult = CreatePartitionsResponse.CreatePartitionsTopicResult


@handles(CreateTopicsRequest)
async def create_topics(request: Request[CreateTopicsRequest]) -> CreateTopicsResponse:
    """Create topics. Each has a result of its own, so an invalid topic does not stop the others."""
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
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the caller may not create this topic"
    if is_twice:
        return ErrorCode.INVALID_REQUEST, "the request names this topic twice"
    if error := topic_name_error(topic.name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, error
    if any(config.value is None for config in topic.configs):
        return ErrorCode.INVALID_CONFIG, "a config has no value"
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            return (
                ErrorCode.INVALID_REQUEST,
                "the request has both an assignment and a count of partitions or replicas",
            )
        indexes = sorted(assignment.partition_index for assignment in topic.assignments)
        if indexes != list(range(len(indexes))):
            return (
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "the assignment must have the partitions 0, 1, 2 and so on",
            )
        return None
    if topic.num_partitions == 0 or topic.num_partitions < -1:
        return (
            ErrorCode.INVALID_PARTITIONS,
            "the partition count must be at least 1, or -1 for num.partitions",
        )
    if topic.replication_factor == 0 or topic.replication_factor < -1:
        return (
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "the replication factor must be at least 1, or -1 for default.replication.factor",
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
    """Return a topic's result. `configs` are those that the request sets, which the image lacks if the request only
    validates; `described` caches the described configs for topics that have equal configs.
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
    """Add partitions to each topic. Each topic has one result, and is refused if the request names it twice."""
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
            # Null leaves the choice of replicas to the controller; an empty list assigns none.
            state = ErrorCode.INVALID_REPLICA_ASSIGNMENT
            text = "the list of assignments is empty"
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
