"""Conversions between the protobuf messages of the admin service and the controller's requests and results, and
descriptions of configs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from odradek_metadata_quorum.controller.access import (
    AclEntry,
    QuotaAlteration,
    ScramDeletion,
    ScramUpsertion,
)
from odradek_metadata_quorum.controller.configs import (
    AlterConfigsResource,
    AlterOperation,
    ConfigOperation,
)
from odradek_metadata_quorum.controller.requests import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewPartitions,
    NewTopic,
    Outcome,
    PartitionResult,
    Reassignment,
    TopicResult,
)
from odradek_protocol.identity import BrokerId, PartitionIndex, TopicId, TopicName, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import (
    INERT_TOPIC_CONFIGS,
    definitions,
    resolve_broker_config,
    resolve_group_config,
    resolve_topic_config,
)
from odradek_protocol.metadata.image import MetadataImage, QuotaEntity
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import common_pb2

# The number of partitions that are decided in one iteration of the event loop, which takes about 10 ms.
PIECE_PARTITIONS: Final = 100


class BadRequest(ValueError):
    """A protobuf message has a value that the protocol does not define. The error text names the value."""


def partition_count(topic: pb.NewTopic, default: int) -> int:
    """Return the number of partitions that a new topic would have. `default` applies if the message has neither a count
    nor assignments.
    """
    return len(topic.assignments) or (
        topic.partition_count if topic.partition_count > 0 else default
    )


def create_topics_pieces(
    message: pb.CreateTopicsRequest, counts: Sequence[int], repeated: frozenset[str]
) -> Iterator[CreateTopicsRequest]:
    """Yield a request in pieces of about `PIECE_PARTITIONS` new partitions. Each piece is converted only when it is
    needed.

    `counts` has the number of partitions of each topic. `repeated` has the names that occur more than once.
    """
    for piece in _pieces(counts):
        yield CreateTopicsRequest(
            topics=tuple(
                NewTopic(
                    name=topic.name,
                    partition_count=topic.partition_count or -1,
                    replication_factor=topic.replication_factor or -1,
                    assignments=_assignments(topic.assignments),
                    configs=tuple(sorted(topic.configs.items())),
                )
                for topic in message.topics[piece]
            ),
            validate_only=message.validate_only,
            partitions_elsewhere=sum(counts) - sum(counts[piece]),
            repeated_names=repeated,
        )


def create_partitions_pieces(
    message: pb.CreatePartitionsRequest, image: MetadataImage
) -> Iterator[CreatePartitionsRequest]:
    """Yield a request in pieces, as `create_topics_pieces` does. `image` has the present numbers of partitions."""
    counts = [
        max(topic.total_count - len(present.partitions), 0)
        if (present := image.topic(topic.name)) is not None
        else 0
        for topic in message.topics
    ]
    for piece in _pieces(counts):
        yield CreatePartitionsRequest(
            topics=tuple(
                NewPartitions(
                    name=topic.name,
                    total_count=topic.total_count,
                    assignments=_assignments(topic.assignments),
                )
                for topic in message.topics[piece]
            ),
            validate_only=message.validate_only,
            partitions_elsewhere=sum(counts) - sum(counts[piece]),
        )


def delete_topics_pieces(message: pb.DeleteTopicsRequest) -> Iterator[DeleteTopicsRequest]:
    """Yield a request in pieces of at most `PIECE_PARTITIONS` topics: first topics named by name, then topics named by
    id.
    """
    if message.names or not message.topic_ids:
        for piece in _pieces([1] * len(message.names)):
            yield DeleteTopicsRequest(names=tuple(message.names[piece]))
    for piece in _pieces([1] * len(message.topic_ids)) if message.topic_ids else ():
        yield DeleteTopicsRequest(topic_ids=tuple(map(TopicId, message.topic_ids[piece])))


def _pieces(counts: Sequence[int]) -> Iterator[slice]:
    """Yield ranges of items. The items of a range have about `PIECE_PARTITIONS` partitions in total. `counts` has the
    number of partitions of each item, of which 0 counts as 1.
    """
    start = weight = 0
    for index, count in enumerate(counts):
        if weight and weight + max(count, 1) > PIECE_PARTITIONS:
            yield slice(start, index)
            start, weight = index, 0
        weight += max(count, 1)
    # A request without items is one piece, because it needs a response, too.
    if weight or not counts:
        yield slice(start, len(counts))


def topic_result(result: TopicResult) -> pb.TopicResult:
    """Convert a `TopicResult` to the protobuf message."""
    return pb.TopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_code=result.outcome.error,
        error_message=result.outcome.message,
        partition_count=result.partition_count,
        replication_factor=result.replication_factor,
    )


def is_unclean(message: pb.ElectLeadersRequest) -> bool:
    """Return whether the request is for unclean elections. Raises `BadRequest` for an unknown election type."""
    if message.election_type not in (0, 1):
        raise BadRequest(
            f"there is no election type {message.election_type}: 0 is preferred, 1 is unclean"
        )
    return message.election_type == 1


def reassignment(message: pb.PartitionReassignment) -> Reassignment:
    """Convert the protobuf message to a `Reassignment`. An empty list of replicas cancels a move."""
    return Reassignment(
        partition=partition(message.partition),
        replicas=tuple(map(BrokerId, message.replicas)) or None,
    )


def partition_result(result: PartitionResult) -> pb.PartitionResult:
    """Convert a `PartitionResult` to the protobuf message."""
    return pb.PartitionResult(
        partition=common_pb2.TopicPartition(
            topic=result.partition.topic, partition=result.partition.partition
        ),
        error_code=result.outcome.error,
        error_message=result.outcome.message,
    )


def alter_configs_resource(
    message: pb.AlterConfigsResource, operations: Iterable[ConfigOperation]
) -> AlterConfigsResource:
    """Convert the protobuf message to an `AlterConfigsResource` with these operations. Raises `BadRequest` for an
    unknown resource type.
    """
    return AlterConfigsResource(
        resource_type=resource_type(message.type),
        resource_name=message.name,
        operations=tuple(operations),
        replaces_all=message.replaces_all,
    )


def resource_type(number: int) -> ConfigResourceType:
    """Convert the number of a protobuf message to a `ConfigResourceType`. Raises `BadRequest` for an unknown number."""
    try:
        return ConfigResourceType(number)
    except ValueError:
        raise BadRequest(
            f"resources of type {number} have no configs: 2 is topic, 4 is broker, 32 is group"
        ) from None


def operation(message: pb.AlterConfigsOperation) -> ConfigOperation:
    """Convert the protobuf message to a `ConfigOperation`. Raises `BadRequest` for an unknown operation."""
    try:
        kind = AlterOperation(message.operation)
    except ValueError:
        raise BadRequest(
            f"there is no config operation {message.operation}: 0 is set, 1 delete, 2 append, 3 subtract"
        ) from None
    return ConfigOperation(
        name=message.name,
        operation=kind,
        value=message.value if message.HasField("value") else None,
    )


def acl_entry(message: pb.AclEntry) -> AclEntry:
    """Convert the protobuf message of an access control entry or a filter. A number of 0 in a filter means ANY."""
    return AclEntry(
        resource_type=message.resource_type or 1,
        resource_name=message.resource_name,
        pattern_type=message.pattern_type or 1,
        principal=message.principal,
        host=message.host,
        operation=message.operation or 1,
        permission_type=message.permission_type or 1,
    )


def acl_message(entry: AclEntry) -> pb.AclEntry:
    """Convert an `AclEntry` to the protobuf message."""
    return pb.AclEntry(
        resource_type=entry.resource_type,
        resource_name=entry.resource_name,
        pattern_type=entry.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission_type,
    )


def scram_upsertion(message: pb.ScramUpsertion) -> ScramUpsertion:
    """Convert the protobuf message to a `ScramUpsertion`."""
    return ScramUpsertion(
        user=message.name,
        mechanism=message.mechanism,
        iterations=message.iterations,
        salt=message.salt,
        salted_password=message.salted_password,
    )


def scram_deletion(message: pb.ScramDeletion) -> ScramDeletion:
    """Convert the protobuf message to a `ScramDeletion`."""
    return ScramDeletion(user=message.name, mechanism=message.mechanism)


def quota_alteration(message: pb.QuotaEntry) -> QuotaAlteration:
    """Convert the protobuf message to a `QuotaAlteration`. An unset name becomes None, which means the default for all
    entities of the type. An unset value becomes None, which removes the quota.
    """
    return QuotaAlteration(
        entity=tuple(
            (part.type, part.name if part.HasField("name") else None) for part in message.entity
        ),
        key=message.key,
        value=message.value if message.HasField("value") else None,
    )


def quota_message(entity: QuotaEntity, key: str, value: float) -> pb.QuotaEntry:
    """Convert one quota of a client to the protobuf message."""
    return pb.QuotaEntry(
        entity=[pb.QuotaEntityPart(type=kind, name=name) for kind, name in entity],
        key=key,
        value=value,
    )


def item_result(outcome: Outcome) -> pb.ItemResult:
    """Convert an `Outcome` to the protobuf message."""
    return pb.ItemResult(error_code=outcome.error, error_message=outcome.message)


def partition(message: common_pb2.TopicPartition) -> TopicPartition:
    """Convert the protobuf message to a `TopicPartition`."""
    return TopicPartition(TopicName(message.topic), PartitionIndex(message.partition))


def _assignments(messages: Iterable[pb.ReplicaAssignment]) -> tuple[tuple[BrokerId, ...], ...]:
    return tuple(tuple(map(BrokerId, message.broker_ids)) for message in messages)


def describe(
    image: MetadataImage, resource: pb.ConfigResource, *, with_documentation: bool
) -> pb.ConfigResourceResult:
    """Return the configs of a resource that can be changed at run time, with the source of each value.

    The settings with which brokers were started are not known to the controller; brokers add them to the response.
    """
    result = pb.ConfigResourceResult(type=resource.type, name=resource.name)
    if resource.type == pb.CONFIG_RESOURCE_TYPE_TOPIC:
        if image.topic(resource.name) is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            result.error_message = f"there is no topic {resource.name}"
            return result
    elif resource.type not in (pb.CONFIG_RESOURCE_TYPE_BROKER, pb.CONFIG_RESOURCE_TYPE_GROUP):
        result.error_code = ErrorCode.INVALID_REQUEST
        result.error_message = "only topics (2), brokers (4) and groups (32) have configs"
        return result
    result.entries.extend(
        _entries(
            image,
            ConfigResourceType(resource.type),
            resource.name,
            frozenset(resource.config_names),
            with_documentation,
        )
    )
    return result


def _entries(
    image: MetadataImage,
    resource_type: ConfigResourceType,
    resource: str,
    wanted: Collection[str],
    with_documentation: bool,
) -> Iterator[pb.ConfigEntry]:
    own = image.config_of(resource_type, resource)
    for name, definition in sorted(definitions(resource_type).items()):
        if wanted and name not in wanted:
            continue
        if name in INERT_TOPIC_CONFIGS and name not in own:
            continue
        match resource_type:
            case ConfigResourceType.TOPIC:
                value, source = resolve_topic_config(image, resource, definition)
            case ConfigResourceType.GROUP:
                value, source = resolve_group_config(image, resource, definition)
            case _:
                value, source = resolve_broker_config(image, resource, definition)
        yield pb.ConfigEntry(
            name=name,
            value=None if definition.is_sensitive else value,
            source=source,
            is_sensitive=definition.is_sensitive,
            type=definition.type,
            documentation=definition.documentation if with_documentation else "",
        )
