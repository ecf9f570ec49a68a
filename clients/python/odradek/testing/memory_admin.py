"""The AdminService of the in-memory cluster: requests for topics, configs, records, replicas and the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from odradek.testing.memory_state import MemoryState
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import (
    INERT_TOPIC_CONFIGS,
    TOPIC_CONFIGS,
    ConfigError,
    ConfigSource,
    check_config,
    check_together,
    definition_of,
)
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.topic_names import topic_name_error

Call = Callable[[MemoryState, int, Any], Message]


def _create_topics(
    cluster: MemoryState, broker_id: int, request: pb.CreateTopicsRequest
) -> pb.CreateTopicsResponse:
    response = pb.CreateTopicsResponse()
    for new in request.topics:
        result = response.topics.add(name=new.name)
        count = new.partition_count if new.partition_count > 0 else cluster.default_partitions
        problem = _config_problem(new.configs)
        if error := topic_name_error(new.name):
            result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
            result.error_message = error
        elif new.name in cluster.topics:
            result.error_code = ErrorCode.TOPIC_ALREADY_EXISTS
            result.error_message = "the topic already exists"
        elif new.replication_factor > len(cluster.endpoints):
            result.error_code = ErrorCode.INVALID_REPLICATION_FACTOR
            result.error_message = (
                f"replication factor {new.replication_factor} needs as many brokers,"
                f" but there are only {len(cluster.endpoints)}"
            )
        elif problem:
            result.error_code = ErrorCode.INVALID_CONFIG
            result.error_message = problem
        else:
            result.partition_count = count
            result.replication_factor = len(cluster.endpoints)
            if not request.validate_only:
                topic = cluster.create_topic(new.name, count, dict(new.configs))
                result.topic_id = topic.topic_id
    return response


def _config_problem(configs: Mapping[str, str], names: Sequence[str] = ()) -> str | None:
    """Return why a topic cannot have these configs, or why one of `names` is no topic config; None if all are valid."""
    try:
        for name in names:
            definition_of(ConfigResourceType.TOPIC, name)
        for name, value in configs.items():
            check_config(ConfigResourceType.TOPIC, name, value)
        check_together(dict(configs))
    except ConfigError as error:
        return str(error)
    return None


def _delete_topics(
    cluster: MemoryState, broker_id: int, request: pb.DeleteTopicsRequest
) -> pb.DeleteTopicsResponse:
    response = pb.DeleteTopicsResponse()
    by_id = {topic.topic_id: topic.name for topic in cluster.topics.values()}
    for name in [*request.names, *(by_id.get(i, "") for i in request.topic_ids)]:
        result = response.topics.add(name=name)
        if name in cluster.topics:
            result.topic_id = cluster.topics[name].topic_id
            cluster.delete_topic(name)
        else:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return response


def _create_partitions(
    cluster: MemoryState, broker_id: int, request: pb.CreatePartitionsRequest
) -> pb.CreatePartitionsResponse:
    response = pb.CreatePartitionsResponse()
    for new in request.topics:
        result = response.topics.add(name=new.name)
        topic = cluster.topics.get(new.name)
        if topic is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif new.total_count <= len(topic.partitions):
            result.error_code = ErrorCode.INVALID_PARTITIONS
            result.error_message = (
                f"topic {new.name!r} already has {len(topic.partitions)} partitions"
            )
        elif not request.validate_only:
            cluster.add_partitions(new.name, new.total_count - len(topic.partitions))
    return response


def _describe_configs(
    cluster: MemoryState, broker_id: int, request: pb.DescribeConfigsRequest
) -> pb.DescribeConfigsResponse:
    response = pb.DescribeConfigsResponse()
    for resource in request.resources:
        result = response.resources.add(type=resource.type, name=resource.name)
        topic = cluster.topics.get(resource.name)
        if resource.type != pb.CONFIG_RESOURCE_TYPE_TOPIC or topic is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        inert = {name: c for name, c in INERT_TOPIC_CONFIGS.items() if name in topic.configs}
        for name, definition in (TOPIC_CONFIGS | inert).items():
            if not resource.config_names or name in resource.config_names:
                own = topic.configs.get(name)
                result.entries.add(
                    name=name,
                    value=definition.default if own is None else own,
                    source=ConfigSource.DEFAULT if own is None else ConfigSource.TOPIC,
                    type=definition.type,
                )
    return response


def _alter_configs(
    cluster: MemoryState, broker_id: int, request: pb.AlterConfigsRequest
) -> pb.AlterConfigsResponse:
    response = pb.AlterConfigsResponse()
    for resource in request.resources:
        result = response.resources.add(type=resource.type, name=resource.name)
        topic = cluster.topics.get(resource.name)
        if resource.type != pb.CONFIG_RESOURCE_TYPE_TOPIC or topic is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            configs = {} if resource.replaces_all else dict(topic.configs)
            for operation in resource.operations:
                if operation.operation == 1:
                    configs.pop(operation.name, None)
                else:
                    configs[operation.name] = operation.value
            if problem := _config_problem(configs, [o.name for o in resource.operations]):
                result.error_code = ErrorCode.INVALID_CONFIG
                result.error_message = problem
            elif not request.validate_only:
                topic.configs.clear()
                topic.configs.update(configs)
    return response


def _delete_records(
    cluster: MemoryState, broker_id: int, request: pb.DeleteRecordsRequest
) -> pb.DeleteRecordsResponse:
    response = pb.DeleteRecordsResponse()
    for item in request.partitions:
        result = response.partitions.add(partition=item.partition)
        partition = cluster.partition(item.partition.topic, item.partition.partition)
        if partition is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        end_offset = partition.log.log_end_offset
        offset = end_offset if item.offset == -1 else item.offset
        if not 0 <= offset <= end_offset:
            result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            continue
        partition.log.delete_before(offset)
        result.offset = partition.log.log_start_offset
    return response


def _elect_leaders(
    cluster: MemoryState, broker_id: int, request: pb.ElectLeadersRequest
) -> pb.ElectLeadersResponse:
    response = pb.ElectLeadersResponse()
    names = [(p.topic, p.partition) for p in request.partitions] or [
        (topic.name, index)
        for topic in cluster.topics.values()
        for index in range(len(topic.partitions))
    ]
    for name, index in names:
        result = response.partitions.add()
        result.partition.topic, result.partition.partition = name, index
        partition = cluster.partition(name, index)
        if partition is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif partition.leader_id == partition.replicas[0]:
            result.error_code = ErrorCode.ELECTION_NOT_NEEDED
        elif partition.replicas[0] not in cluster.alive:
            result.error_code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        else:
            partition.leader_id = partition.replicas[0]
            partition.leader_epoch += 1
    cluster.changed()
    return response


def _alter_reassignments(
    cluster: MemoryState, broker_id: int, request: pb.AlterPartitionReassignmentsRequest
) -> pb.AlterPartitionReassignmentsResponse:
    response = pb.AlterPartitionReassignmentsResponse()
    for move in request.reassignments:
        result = response.partitions.add(partition=move.partition)
        partition = cluster.partition(move.partition.topic, move.partition.partition)
        if partition is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif not move.replicas and not partition.is_moving:
            result.error_code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        elif unknown := sorted(set(move.replicas) - set(cluster.endpoints)):
            result.error_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
            result.error_message = f"there is no broker {unknown[0]}"
        elif (
            move.replicas
            and request.keep_replication_factor
            and len(move.replicas) != len(partition.replicas) - len(partition.removing)
        ):
            result.error_code = ErrorCode.INVALID_REPLICATION_FACTOR
        else:
            partition.move_to(list(move.replicas))
    cluster.end_moves()
    return response


def _describe_log_dirs(
    cluster: MemoryState, broker_id: int, request: pb.DescribeLogDirsRequest
) -> pb.DescribeLogDirsResponse:
    response = pb.DescribeLogDirsResponse()
    for described_id in request.broker_ids or sorted(cluster.alive):
        broker = response.brokers.add(broker_id=described_id)
        if described_id not in cluster.alive:
            broker.error_code = ErrorCode.BROKER_NOT_AVAILABLE
            broker.error_message = (
                f"broker {described_id} is not running, or is not a broker of this cluster"
            )
            continue
        directory = broker.log_dirs.add(
            path=f"/memory/{described_id}", total_bytes=-1, usable_bytes=-1
        )
        if not request.include_partitions:
            continue
        for topic in cluster.topics.values():
            for index, partition in enumerate(topic.partitions):
                if described_id in partition.replicas:
                    log = directory.partitions.add(size_bytes=partition.log.size_bytes)
                    log.partition.topic, log.partition.partition = topic.name, index
    return response


def _describe_cluster(
    cluster: MemoryState, broker_id: int, request: pb.DescribeClusterRequest
) -> pb.DescribeClusterResponse:
    response = pb.DescribeClusterResponse(
        cluster_id=cluster.cluster_id, active_controller_id=1, controller_epoch=1
    )
    for known_id in cluster.endpoints:
        response.brokers.add(
            broker_id=known_id,
            broker_epoch=1,
            is_fenced=known_id not in cluster.alive,
            leader_count=sum(
                partition.leader_id == known_id
                for topic in cluster.topics.values()
                for partition in topic.partitions
            ),
        )
    return response


ADMIN_CALLS: Final[dict[str, tuple[type[Message], Call]]] = {
    "CreateTopics": (pb.CreateTopicsRequest, _create_topics),
    "DeleteTopics": (pb.DeleteTopicsRequest, _delete_topics),
    "CreatePartitions": (pb.CreatePartitionsRequest, _create_partitions),
    "DescribeConfigs": (pb.DescribeConfigsRequest, _describe_configs),
    "AlterConfigs": (pb.AlterConfigsRequest, _alter_configs),
    "DeleteRecords": (pb.DeleteRecordsRequest, _delete_records),
    "ElectLeaders": (pb.ElectLeadersRequest, _elect_leaders),
    "AlterPartitionReassignments": (pb.AlterPartitionReassignmentsRequest, _alter_reassignments),
    "DescribeLogDirs": (pb.DescribeLogDirsRequest, _describe_log_dirs),
    "DescribeCluster": (pb.DescribeClusterRequest, _describe_cluster),
}
