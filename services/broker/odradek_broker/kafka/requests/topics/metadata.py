"""Metadata: brokers, topics, leaders. The hottest of the generated messages, so cached as bytes.

A topic that is not there is created if the client and the cluster allow it, and the answer waits
until it is. A null list of topics asks for all of them, and so does an empty one in version 0, the
first request of old clients; names the client may not DESCRIBE are left out there, and refused
where it named them itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Encoded, Request
from odradek_broker.kafka.requests.cluster.brokers import live_nodes
from odradek_broker.kafka.requests.topics.topic_errors import find_topic
from odradek_protocol.access import CLUSTER_NAME, Operation, ResourceType
from odradek_protocol.identity import NO_TOPIC_ID
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message, MetadataResponse, uuid_of
from odradek_protocol.metadata.configs import INTERNAL_TOPICS
from odradek_protocol.metadata.image import PartitionState, TopicState
from odradek_protocol.topic_names import topic_name_error

_AUTO_CREATE_FLAG: Final = 4
_CLUSTER_OPERATIONS: Final = range(8, 11)
_CREATED_MAX: Final = 100  # topics created by one request
_Topic: Final = MetadataResponse.MetadataResponseTopic
_Partition: Final = _Topic.MetadataResponsePartition
_Broker: Final = MetadataResponse.MetadataResponseBroker


@handles(ApiKey.METADATA)
async def metadata(request: Request) -> Message | Encoded:
    """All topics, those named, or none."""
    message = request.message
    cache = request.services.metadata_cache
    wanted: tuple[tuple[str | None, bytes], ...] | None = None
    if request.version == 0 and not message.topics:
        message.topics = None
    if message.topics is not None:
        named = {_reference(one): one for one in message.topics}  # each is told once, as Kafka does
        message.topics, wanted = list(named.values()), tuple(named)
    key = (request.version, request.session.listener, wanted, _viewer(request))
    cached = cache.get(request.services.image.offset, key)
    if cached is not None:
        return Encoded((cached,), len(cached))
    if message.topics is None:
        offset = request.services.image.offset
        answers: Sequence[Any] = await _all_topics(request)
    else:
        refused = await _create_missing(request, message)
        offset = request.services.image.offset
        answers = [
            await _named_topic(request, one, refused)
            async for one in request.in_turns(message.topics)
        ]
    response = MetadataResponse(
        brokers=[
            _Broker(node_id=one.broker_id, host=one.host, port=one.port, rack=one.rack)
            for one in live_nodes(request)
        ],
        cluster_id=request.services.cluster_id,
        controller_id=request.services.broker_id,  # every broker passes admin requests on
        topics=answers,
    )
    if request.version in _CLUSTER_OPERATIONS and message.include_cluster_authorized_operations:
        response.authorized_operations = request.operations(ResourceType.CLUSTER, CLUSTER_NAME)
    if any(one.error_code for one in answers):
        return response
    body = await request.encoded(response)
    if offset == request.services.image.offset:  # it did not move within the answer
        cache.put(offset, key, body)
    return Encoded((body,), len(body))


async def topic_partitions(topic: TopicState, request: Request, make: Any) -> list[Any]:
    """A message's entry for each partition, by `make`."""
    return [
        _partition(one, request, make) async for one in request.in_turns(list(topic.partitions))
    ]


def _viewer(request: Request) -> object:
    """What of its caller a response depends on: nothing, or its rights and whether it asked for them."""
    message = request.message
    rights = (
        bool(message.include_cluster_authorized_operations),
        bool(message.include_topic_authorized_operations),
    )
    authorizer = request.services.authorizer
    if not authorizer.is_on:
        return rights
    return authorizer.version, request.session.principal, request.session.host, rights


def _reference(one: Any) -> tuple[str | None, bytes]:
    return one.name, one.topic_id or NO_TOPIC_ID


async def _all_topics(request: Request) -> list[Any]:
    return [
        await _topic(request, topic)
        async for topic in request.in_turns(list(request.services.image.topics.values()))
        if request.sees(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
    ]


async def _create_missing(request: Request, message: Message) -> dict[str, ErrorCode]:
    """Create what was named and is not there, if everybody agrees; what was refused."""
    creation = request.services.topic_creation
    asked = request.version < _AUTO_CREATE_FLAG or message.allow_auto_topic_creation
    if creation is None or not asked or not creation.is_enabled:
        return {}
    missing = [
        one.name
        async for one in request.in_turns(message.topics)
        if one.name
        and request.services.image.topic(one.name) is None
        and request.allows_topic(Operation.DESCRIBE, one.name)
        and topic_name_error(one.name) is None
        and one.name not in INTERNAL_TOPICS
    ]
    may_all = request.sees_cluster(Operation.CREATE)
    allowed = [
        one
        async for one in request.in_turns(missing)
        if may_all or request.allows_topic(Operation.CREATE, one)
    ]
    refused = dict.fromkeys(set(missing) - set(allowed), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if allowed:
        refused.update(await creation.ensure(allowed[:_CREATED_MAX]))
    return refused


async def _named_topic(request: Request, wanted: Any, refused: dict[str, ErrorCode]) -> Any:
    found = find_topic(request, wanted.name, wanted.topic_id, Operation.DESCRIBE)
    if isinstance(found, TopicState):
        return await _topic(request, found)
    error = refused.get(wanted.name, found)
    if wanted.name is not None and topic_name_error(wanted.name) is not None:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    return _Topic(
        error_code=error,
        name=wanted.name if wanted.name is not None or request.version >= 12 else "",
        topic_id=uuid_of(wanted.topic_id or NO_TOPIC_ID),
        partitions=[],
    )


async def _topic(request: Request, topic: TopicState) -> Any:
    entry = _Topic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=uuid_of(topic.topic_id),
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=await topic_partitions(topic, request, _Partition),
    )
    if request.message.include_topic_authorized_operations:
        entry.authorized_operations = request.operations(ResourceType.TOPIC, topic.name)
    return entry


def _partition(state: PartitionState, request: Request, make: Any) -> Any:
    brokers = request.services.image.brokers
    has_leader = state.leader >= 0
    return make(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=state.partition,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=_offline(state.replicas, brokers),
    )


def _offline(replicas: Iterable[int], brokers: Any) -> list[int]:
    return [one for one in replicas if one not in brokers or brokers[one].fenced]
