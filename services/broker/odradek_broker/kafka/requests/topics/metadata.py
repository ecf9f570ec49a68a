"""Metadata: describes brokers, topics and leaders.

Encoded responses are cached, because Metadata is the most frequent request without a hand-written encoder. A missing
topic is created if the client and the cluster allow it; the response is sent after the creation. A null list of topics
means all topics, and so does an empty list in version 0. A response with all topics omits the topics that the caller
may not DESCRIBE. If the request names such a topic, the response has an error for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Encoded, Request, find_topic
from odradek_broker.kafka.requests.administration.brokers import live_nodes
from odradek_protocol.access import CLUSTER_NAME, Operation, ResourceType
from odradek_protocol.identity import NO_TOPIC_ID, BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import MetadataRequest, MetadataResponse, uuid_of
from odradek_protocol.metadata.configs import INTERNAL_TOPICS
from odradek_protocol.metadata.image import BrokerState, PartitionState, TopicState
from odradek_protocol.topic_names import topic_name_error

_AUTO_CREATE_FLAG: Final = 4
_CLUSTER_OPERATIONS: Final = range(8, 11)
_CREATED_MAX: Final = 100  # the maximum number of topics that one request creates
_NamedTopic = MetadataRequest.MetadataRequestTopic
_Topic = MetadataResponse.MetadataResponseTopic
_Partition = _Topic.MetadataResponsePartition
_Broker = MetadataResponse.MetadataResponseBroker


@handles(MetadataRequest)
async def metadata(request: Request[MetadataRequest]) -> MetadataResponse | Encoded:
    """Describe the brokers, and all topics, the requested topics or no topics."""
    message = request.message
    cache = request.services.metadata_cache
    references: tuple[tuple[str | None, bytes], ...] | None = None
    if request.version == 0 and not message.topics:
        message.topics = None
    if message.topics is not None:
        # As in Kafka, the response has each topic once, even if the request names it several times.
        named = {_reference(topic): topic for topic in message.topics}
        message.topics, references = list(named.values()), tuple(named)
    key = (request.version, request.session.listener, references, _viewer(request))
    cached = cache.get(request.services.image.offset, key)
    if cached is not None:
        return Encoded((cached,), len(cached))
    if message.topics is None:
        offset = request.services.image.offset
        topics = await _all_topics(request)
    else:
        refused = await _create_missing(request, message.topics)
        offset = request.services.image.offset
        topics = [
            await _named_topic(request, topic, refused)
            async for topic in request.in_turns(message.topics)
        ]
    response = MetadataResponse(
        brokers=[
            _Broker(node_id=node.broker_id, host=node.host, port=node.port, rack=node.rack)
            for node in live_nodes(request)
        ],
        cluster_id=request.services.cluster_id,
        # Any broker can be named as the controller, because every broker forwards admin requests to the controller.
        controller_id=request.services.broker_id,
        topics=topics,
    )
    if request.version in _CLUSTER_OPERATIONS and message.include_cluster_authorized_operations:
        response.authorized_operations = request.operations(ResourceType.CLUSTER, CLUSTER_NAME)
    if any(topic.error_code for topic in topics):
        return response
    body = await request.encoded(response)
    if offset == request.services.image.offset:  # the image has not changed in the meantime
        cache.put(offset, key, body)
    return Encoded((body,), len(body))


def _viewer(request: Request[MetadataRequest]) -> object:
    """Return the part of the cache key that depends on the caller and its rights."""
    message = request.message
    rights = (
        bool(message.include_cluster_authorized_operations),
        bool(message.include_topic_authorized_operations),
    )
    authorizer = request.services.authorizer
    if not authorizer.is_on:
        return rights
    return authorizer.version, request.session.principal, request.session.host, rights


def _reference(topic: _NamedTopic) -> tuple[str | None, bytes]:
    return topic.name, topic.topic_id or NO_TOPIC_ID


async def _all_topics(request: Request[MetadataRequest]) -> list[_Topic]:
    return [
        await _topic(request, topic)
        async for topic in request.in_turns(list(request.services.image.topics.values()))
        if request.sees(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
    ]


async def _create_missing(
    request: Request[MetadataRequest], topics: list[_NamedTopic]
) -> dict[str, ErrorCode]:
    """Create missing topics if the client and the cluster allow it. Return the errors of topics that could not be
    created.
    """
    creation = request.services.topic_creation
    is_requested = request.version < _AUTO_CREATE_FLAG or request.message.allow_auto_topic_creation
    if creation is None or not is_requested or not creation.is_enabled:
        return {}
    missing = [
        topic.name
        async for topic in request.in_turns(topics)
        if topic.name
        and (topic.topic_id or NO_TOPIC_ID) == NO_TOPIC_ID
        and request.services.image.topic(topic.name) is None
        and request.allows_topic(Operation.DESCRIBE, topic.name)
        and topic_name_error(topic.name) is None
        and topic.name not in INTERNAL_TOPICS
    ]
    may_all = request.sees_cluster(Operation.CREATE)
    allowed = [
        name
        async for name in request.in_turns(missing)
        if may_all or request.allows_topic(Operation.CREATE, name)
    ]
    refused = dict.fromkeys(set(missing) - set(allowed), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if allowed:
        refused.update(await creation.ensure(allowed[:_CREATED_MAX]))
    return refused


async def _named_topic(
    request: Request[MetadataRequest], topic: _NamedTopic, refused: dict[str, ErrorCode]
) -> _Topic:
    # As in Kafka, the name is ignored if the request has an id.
    has_id = (topic.topic_id or NO_TOPIC_ID) != NO_TOPIC_ID
    name = None if has_id else topic.name
    state = find_topic(request, name, topic.topic_id, Operation.DESCRIBE)
    if isinstance(state, TopicState):
        return await _topic(request, state)
    error = refused.get(name or "", state)
    if name is not None and topic_name_error(name) is not None:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    return _Topic(
        error_code=error,
        name=name if name is not None or request.version >= 12 else "",
        topic_id=uuid_of(topic.topic_id or NO_TOPIC_ID),
        partitions=[],
    )


async def _topic(request: Request[MetadataRequest], topic: TopicState) -> _Topic:
    entry = _Topic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=uuid_of(topic.topic_id),
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _partition(state, request) async for state in request.in_turns(list(topic.partitions))
        ],
    )
    if request.message.include_topic_authorized_operations:
        entry.authorized_operations = request.operations(ResourceType.TOPIC, topic.name)
    return entry


def _partition(state: PartitionState, request: AnyRequest) -> _Partition:
    brokers = request.services.image.brokers
    has_leader = state.leader >= 0
    return _Partition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=state.partition,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=_offline(state.replicas, brokers),
    )


def _offline(replicas: Iterable[BrokerId], brokers: Mapping[BrokerId, BrokerState]) -> list[int]:
    return [replica for replica in replicas if replica not in brokers or brokers[replica].fenced]
