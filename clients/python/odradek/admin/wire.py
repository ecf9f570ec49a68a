"""Conversion between the arguments and results of `Admin` and the protobuf messages of the admin, group and broker
services.
"""

from __future__ import annotations

import shlex
from collections.abc import Generator, Iterable, Mapping, Sequence

from odradek.admin.access import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    Quota,
    ResourceType,
    ScramMechanism,
    ScramUser,
)
from odradek.admin.descriptions import (
    BrokerDescription,
    ClusterDescription,
    ConfigSource,
    ConfigValue,
    FeatureDescription,
    GroupDescription,
    GroupListing,
    GroupMember,
    ListenerDescription,
    LogDirDescription,
    NewTopic,
    PartitionOutcome,
    QuorumDescription,
    TopicDescription,
    TopicOutcome,
    Voter,
)
from odradek.cluster.metadata_cache import partitions_of
from odradek.errors import GroupInUse, OdradekError, error_of
from odradek.partitions import PartitionLike, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import (
    broker_service_pb2,
    common_pb2,
    controller_service_pb2,
    group_service_pb2,
)

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


def partition_message(partition: PartitionLike) -> common_pb2.TopicPartition:
    """Return a partition as a message."""
    return common_pb2.TopicPartition(topic=partition[0], partition=partition[1])


def create_topics_request(
    topics: Iterable[NewTopic], validate_only: bool, timeout_ms: int
) -> pb.CreateTopicsRequest:
    request = pb.CreateTopicsRequest(validate_only=validate_only, timeout_ms=timeout_ms)
    for new in topics:
        item = request.topics.add(
            name=new.name,
            partition_count=new.partitions,
            replication_factor=new.replication_factor,
            configs=dict(new.configs),
        )
        for replicas in new.assignments:
            item.assignments.add(broker_ids=replicas)
    return request


def create_partitions_request(
    name: str,
    total: int,
    assignments: Iterable[Sequence[int]],
    validate_only: bool,
    timeout_ms: int,
) -> pb.CreatePartitionsRequest:
    """Return the request that increases the number of partitions of one topic."""
    request = pb.CreatePartitionsRequest(validate_only=validate_only, timeout_ms=timeout_ms)
    item = request.topics.add(name=name, total_count=total)
    for replicas in assignments:
        item.assignments.add(broker_ids=replicas)
    return request


def config_operations(
    set: Mapping[str, str] | None,
    delete: Iterable[str],
    append: Mapping[str, str] | None,
    subtract: Mapping[str, str] | None,
) -> list[pb.AlterConfigsOperation]:
    """Return the changes to the configs of one resource as messages."""
    operations = [
        pb.AlterConfigsOperation(name=name, operation=operation, value=value)
        for operation, values in ((_SET, set), (_APPEND, append), (_SUBTRACT, subtract))
        for name, value in (values or {}).items()
    ]
    return operations + [pb.AlterConfigsOperation(name=name, operation=_DELETE) for name in delete]


def quota_alteration(quota: Quota) -> pb.QuotaEntry:
    """Return the message that sets a quota, or removes it if its value is None."""
    entry = pb.QuotaEntry(key=quota.key, value=quota.value)
    for kind, name in quota.entity.items():
        entry.entity.add(type=kind, name=name)
    return entry


def scram_upsertion(
    user: str, mechanism: ScramMechanism, iterations: int, salt: bytes, salted: bytes
) -> pb.ScramUpsertion:
    """Return the message that sets a SCRAM credential."""
    return pb.ScramUpsertion(
        name=user, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )


def leave_request(group: str, member_id: str) -> group_service_pb2.GroupHeartbeatRequest:
    """Return the heartbeat by which a dynamic member leaves its group (member epoch -1, KIP-848)."""
    return group_service_pb2.GroupHeartbeatRequest(
        group_id=group, member_id=member_id, member_epoch=-1, rebalance_timeout_ms=-1
    )


def topic_description(
    metadata: broker_service_pb2.TopicInfo,
) -> Generator[None, None, TopicDescription]:
    """Return one topic of a metadata response. This generator yields after each partition, so that a large topic does
    not block the event loop.
    """
    partitions = yield from partitions_of(metadata)
    return TopicDescription(
        name=metadata.name,
        topic_id=metadata.topic_id,
        is_internal=metadata.is_internal,
        partitions=tuple(partitions),
    )


def topic_descriptions(
    response: broker_service_pb2.MetadataResponse,
) -> Generator[None, None, list[TopicDescription]]:
    """Return the topics of a metadata response that have no error. This generator yields after each partition and
    topic, so that a large response does not block the event loop.
    """
    described = []
    for metadata in response.topics:
        if not metadata.error_code:
            described.append((yield from topic_description(metadata)))
        yield
    return described


def topic_outcome(result: pb.TopicResult) -> TopicOutcome:
    """Return the outcome of a change for one topic."""
    error: OdradekError | None = None
    if result.error_code:
        error = error_of(result.error_code, f"topic {result.name!r}", result.error_message)
    return TopicOutcome(
        name=result.name,
        topic_id=result.topic_id,
        partitions=result.partition_count,
        replication_factor=result.replication_factor,
        error=error,
    )


def partition_outcome(
    result: pb.PartitionResult, harmless: ErrorCode = ErrorCode.NONE
) -> PartitionOutcome:
    """Return the outcome of a change for one partition. The error code `harmless` counts as success."""
    name = TopicPartition(result.partition.topic, result.partition.partition)
    error: OdradekError | None = None
    if result.error_code not in (ErrorCode.NONE, harmless):
        error = error_of(result.error_code, str(name), result.error_message)
    return PartitionOutcome(partition=name, offset=result.offset, error=error)


def config_value(entry: pb.ConfigEntry) -> ConfigValue:
    """Return one config. A source that this SDK does not know becomes UNKNOWN."""
    is_known = entry.source in ConfigSource.__members__.values()
    return ConfigValue(
        name=entry.name,
        value=entry.value if entry.HasField("value") else None,
        source=ConfigSource(entry.source) if is_known else ConfigSource.UNKNOWN,
        is_read_only=entry.is_read_only,
        is_sensitive=entry.is_sensitive,
        documentation=entry.documentation,
    )


def acl_entry(acl: Acl | AclFilter) -> pb.AclEntry:
    """Return the message for an access control entry, or for a filter."""
    return pb.AclEntry(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def acl_of(entry: pb.AclEntry) -> Acl:
    """Return the access control entry in a message."""
    return Acl(
        resource_type=ResourceType(entry.resource_type),
        resource_name=entry.resource_name,
        pattern_type=PatternType(entry.pattern_type),
        principal=entry.principal,
        host=entry.host,
        operation=AclOperation(entry.operation),
        permission=AclPermission(entry.permission_type),
    )


def quota_of(entry: pb.QuotaEntry) -> Quota:
    """Return the quota in a message."""
    return Quota(
        entity={part.type: part.name if part.HasField("name") else None for part in entry.entity},
        key=entry.key,
        value=entry.value if entry.HasField("value") else None,
    )


def scram_user(user: pb.ScramUserResult) -> ScramUser:
    """Return the SCRAM user in a message."""
    iterations = {ScramMechanism(c.mechanism): c.iterations for c in user.credentials}
    return ScramUser(name=user.name, iterations=iterations)


def group_listing(group: group_service_pb2.GroupListing) -> GroupListing:
    return GroupListing(
        group=group.group_id,
        state=group.state,
        type=group.group_type,
        protocol_type=group.protocol_type,
    )


def group_description(group: group_service_pb2.GroupDescription) -> GroupDescription:
    """Return a group with its members."""
    return GroupDescription(
        group=group.group_id,
        state=group.state,
        type=group.group_type,
        protocol=group.protocol,
        epoch=group.epoch,
        coordinator_id=group.coordinator_id,
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                instance_id=member.instance_id if member.HasField("instance_id") else None,
                client_id=member.client_id,
                host=member.client_host,
                epoch=member.member_epoch,
                assignment=tuple(
                    TopicPartition(topic.topic, index)
                    for topic in member.assignment
                    for index in topic.partitions
                ),
            )
            for member in group.members
        ),
    )


def group_error(code: int, group: str) -> OdradekError:
    """Return the error for an error code of a group. The hint of GroupInUse names the remedy."""
    if code != ErrorCode.NON_EMPTY_GROUP:
        return error_of(code, f"group {group!r}")
    return GroupInUse(
        f"group {group!r} has members",
        code=ErrorCode.NON_EMPTY_GROUP,
        hint=f"stop the members first; `odradek group describe {shlex.quote(group)}` lists them",
    )


def cluster_description(response: pb.DescribeClusterResponse) -> ClusterDescription:
    return ClusterDescription(
        cluster_id=response.cluster_id,
        active_controller_id=response.active_controller_id,
        controller_epoch=response.controller_epoch,
        controller_endpoints=tuple(response.controller_endpoints),
        brokers=tuple(_broker_description(broker) for broker in response.brokers),
    )


def _broker_description(broker: pb.ClusterBroker) -> BrokerDescription:
    return BrokerDescription(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        listeners=tuple(
            ListenerDescription(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in broker.listeners
        ),
        rack=broker.rack,
        is_fenced=broker.is_fenced,
        is_in_shutdown=broker.is_in_shutdown,
        leader_count=broker.leader_count,
        host=broker.host_id,
    )


def quorum_description(quorum: controller_service_pb2.DescribeQuorumResponse) -> QuorumDescription:
    """Return the metadata quorum in a response. Negative numbers in the response mean unknown and become None."""
    return QuorumDescription(
        leader_id=quorum.leader_id,
        term=quorum.term,
        commit_offset=quorum.commit_offset,
        answered_by=quorum.answered_by,
        voters=tuple(
            Voter(
                controller_id=voter.controller_id,
                endpoint=voter.endpoint,
                log_end=voter.log_end if voter.log_end >= 0 else None,
                heard_ms_ago=voter.last_heard_ms if voter.last_heard_ms >= 0 else None,
                host=voter.host_id,
            )
            for voter in quorum.voters
        ),
    )


def feature_description(feature: pb.FeatureDescription) -> FeatureDescription:
    """Return a feature with its levels."""
    return FeatureDescription(
        name=feature.name,
        level=feature.level,
        level_min=feature.level_min,
        level_max=feature.level_max,
        level_common=feature.level_common,
        held_back_by=tuple(feature.held_back_by),
    )


def log_dir_descriptions(broker: pb.BrokerLogDirs) -> list[LogDirDescription]:
    """Return the data directories of one broker. If the broker did not describe them, the result is one entry with the
    error.
    """
    if broker.error_code:
        error = error_of(broker.error_code, f"broker {broker.broker_id}", broker.error_message)
        return [LogDirDescription(broker_id=broker.broker_id, error=error)]
    return [
        LogDirDescription(
            broker_id=broker.broker_id,
            path=directory.path,
            offline_reason=directory.offline_reason,
            full_reason=directory.full_reason,
            stray_count=directory.stray_count,
            stray_bytes=directory.stray_bytes,
            total_bytes=directory.total_bytes if directory.total_bytes >= 0 else None,
            usable_bytes=directory.usable_bytes if directory.usable_bytes >= 0 else None,
            partition_bytes={
                TopicPartition(log.partition.topic, log.partition.partition): log.size_bytes
                for log in directory.partitions
            },
        )
        for directory in broker.log_dirs
    ]
