"""CreateTopics: checked here for what the wire can get wrong, decided by the controller.

How many partitions one request may create is the controller's to decide, too: it refuses all or none.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from odradek_broker.access.quotas import MUTATION_RATE
from odradek_broker.kafka.forwarding import Unanswered, ask_controller, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.configs.config_descriptions import describe_topic
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import CreateTopicsResponse, Message, uuid_of
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.topic_names import topic_name_error

PARTITIONS_MAX: Final = 10_000  # what a request is charged for at most
_Result: Final = CreateTopicsResponse.CreatableTopicResult
_Config: Final = _Result.CreatableTopicConfigs


@handles(ApiKey.CREATE_TOPICS)
async def create_topics(request: Request) -> Message:
    """Each topic on its own: what is wrong with one does not stop the others."""
    message = request.message
    names = Counter(one.name for one in message.topics)
    may_all = request.sees_cluster(Operation.CREATE)
    results: dict[str, Any] = {}
    wanted: list[pb.NewTopic] = []
    async for topic in request.in_turns(message.topics):
        refused = _refused(request, topic, may_all=may_all, is_twice=names[topic.name] > 1)
        if refused is None:
            wanted.append(await _new_topic(request, topic))
        else:
            results[topic.name] = _Result(
                name=topic.name, error_code=refused[0], error_message=refused[1], configs=None
            )
    if wanted:
        request.throttle_ms = request.services.quotas.throttle_ms(
            MUTATION_RATE,
            request.session.principal,
            request.client_id,
            min(
                sum(max(topic.partition_count, len(topic.assignments), 1) for topic in wanted),
                PARTITIONS_MAX,
            ),
        )
        results |= await _create(request, wanted)
    return CreateTopicsResponse(topics=[results[name] for name in names])


def _refused(
    request: Request, topic: Any, *, may_all: bool, is_twice: bool
) -> tuple[ErrorCode, str] | None:
    if not may_all and not request.allows_topic(Operation.CREATE, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed to create it"
    if is_twice:
        return ErrorCode.INVALID_REQUEST, "the request names it twice"
    if error := topic_name_error(topic.name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, error
    if any(one.value is None for one in topic.configs):
        return ErrorCode.INVALID_CONFIG, "a config has no value"
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            return ErrorCode.INVALID_REQUEST, "both an assignment and counts are given"
        indexes = sorted(one.partition_index for one in topic.assignments)
        if indexes != list(range(len(indexes))):
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are not 0, 1, 2 and so on"
        return None
    if topic.num_partitions == 0 or topic.num_partitions < -1:
        return ErrorCode.INVALID_PARTITIONS, "at least 1 partition, or -1 for num.partitions"
    if topic.replication_factor == 0 or topic.replication_factor < -1:
        return (
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "at least 1 replica, or -1 for default.replication.factor",
        )
    return None


async def _new_topic(request: Request, topic: Any) -> pb.NewTopic:
    return pb.NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            pb.ReplicaAssignment(broker_ids=one.broker_ids)
            async for one in request.in_turns(
                sorted(topic.assignments, key=lambda one: one.partition_index)
            )
        ],
        configs={one.name: one.value async for one in request.in_turns(topic.configs)},
    )


async def _create(request: Request, wanted: list[pb.NewTopic]) -> dict[str, Any]:
    message = request.message
    asked = pb.CreateTopicsRequest(
        topics=wanted, validate_only=message.validate_only, timeout_ms=message.timeout_ms
    )
    ask = ask_controller if message.validate_only else change
    try:
        answer = await ask(request, "CreateTopics", asked, timeout_ms=message.timeout_ms)
    except Unanswered as unanswered:
        return {
            one.name: _Result(
                name=one.name,
                error_code=unanswered.code,
                error_message=str(unanswered),
                configs=None,
            )
            for one in wanted
        }
    return {one.name: _result(request, one) async for one in request.in_turns(answer.topics)}


def _result(request: Request, one: pb.TopicResult) -> Any:
    result = _Result(
        name=one.name,
        topic_id=uuid_of(one.topic_id) if one.topic_id else None,
        error_code=one.error_code,
        error_message=one.error_message or None,
        num_partitions=one.partition_count if one.error_code == ErrorCode.NONE else -1,
        replication_factor=one.replication_factor if one.error_code == ErrorCode.NONE else -1,
        configs=None,
    )
    if one.error_code != ErrorCode.NONE:
        return result
    if not request.sees(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, one.name):
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return result
    result.configs = [
        _Config(
            name=config.name,
            value=config.value,
            read_only=config.is_read_only,
            config_source=config.source,
            is_sensitive=config.is_sensitive,
        )
        for config in describe_topic(request.services.settings, request.services.image, one.name)
    ]
    return result
