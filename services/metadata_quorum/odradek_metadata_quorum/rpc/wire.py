"""Conversions between the protobuf messages of the controller service and the controller's requests and responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from odradek_metadata_quorum.controller.requests import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    LogEnd,
    RegisterControllerRequest,
    RegisterRequest,
    RegisterResponse,
    ReportLogEndsRequest,
)
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    ControllerId,
    DirectoryId,
    IncarnationId,
    MetadataIncarnationId,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
)
from odradek_protocol.metadata.records import Endpoint, RestartClass
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb

_RESTART_CLASSES = {
    pb.RESTART_CLASS_CLEAN: RestartClass.CLEAN,
    pb.RESTART_CLASS_PROCESS: RestartClass.PROCESS,
}


def register_request(message: pb.RegisterRequest) -> RegisterRequest:
    """Convert the protobuf message to a `RegisterRequest`. An unspecified or unknown restart class counts as POWER."""
    return RegisterRequest(
        cluster_id=message.cluster_id,
        broker_id=BrokerId(message.broker_id),
        incarnation_id=IncarnationId(message.incarnation_id),
        directory_ids=tuple(map(DirectoryId, message.directory_ids)),
        restart_class=_RESTART_CLASSES.get(message.restart_class, RestartClass.POWER),
        previous_broker_epoch=BrokerEpoch(message.previous_broker_epoch),
        endpoints=_endpoints(message.listeners),
        rack=message.rack or None,
        host_id=message.host_id or None,
        features=tuple(sorted(message.features.items())),
        feature_minima=tuple(sorted(message.feature_minima.items())),
        lost_partitions=frozenset(map(partition, message.lost_partitions)),
        metadata_incarnation_id=MetadataIncarnationId(message.metadata_incarnation_id) or None,
        controller_ids=frozenset(map(ControllerId, message.controller_ids)),
    )


def register_controller_request(
    message: pb.RegisterControllerRequest,
) -> RegisterControllerRequest:
    """Convert the protobuf message to a `RegisterControllerRequest`."""
    return RegisterControllerRequest(
        controller_id=ControllerId(message.controller_id),
        incarnation_id=IncarnationId(message.incarnation_id),
        endpoints=_endpoints(message.listeners),
        features=tuple(sorted(message.features.items())),
        feature_minima=tuple(sorted(message.feature_minima.items())),
        host_id=message.host_id or None,
    )


def _endpoints(listeners: Iterable[common_pb2.Listener]) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(
            name=listener.name,
            host=listener.host,
            port=listener.port,
            security_protocol=listener.security_protocol or "PLAINTEXT",
        )
        for listener in listeners
    )


def register_response(response: RegisterResponse, active_id: int) -> pb.RegisterResponse:
    """Convert a `RegisterResponse` to the protobuf message."""
    return pb.RegisterResponse(
        error_code=response.outcome.error,
        error_message=response.outcome.message,
        broker_epoch=response.broker_epoch,
        active_controller_id=active_id,
    )


def heartbeat_request(message: pb.HeartbeatRequest) -> HeartbeatRequest:
    """Convert the protobuf message to a `HeartbeatRequest`. The field `loop_age_ms` is not used."""
    return HeartbeatRequest(
        broker_id=BrokerId(message.broker_id),
        broker_epoch=BrokerEpoch(message.broker_epoch),
        seq=message.seq,
        image_offset=message.image_offset,
        want_fence=message.want_fence,
        want_shutdown=message.want_shutdown,
        cannot_write=message.cannot_write,
        offline_directory_ids=tuple(map(DirectoryId, message.offline_directories)),
        broken_partitions=frozenset(map(partition, message.broken_partitions)),
    )


def heartbeat_response(response: HeartbeatResponse, active_id: int) -> pb.HeartbeatResponse:
    """Convert a `HeartbeatResponse` to the protobuf message."""
    return pb.HeartbeatResponse(
        error_code=response.error,
        seq=response.seq,
        is_active=response.is_active,
        is_fenced=response.is_fenced,
        may_shutdown=response.may_shutdown,
        controller_epoch=response.controller_epoch,
        report_log_ends=[partition_message(p) for p in response.report_log_ends],
        active_controller_id=active_id,
    )


def alter_partition_request(message: pb.AlterPartitionRequest) -> AlterPartitionRequest:
    """Convert the protobuf message to an `AlterPartitionRequest`."""
    return AlterPartitionRequest(
        broker_id=BrokerId(message.broker_id),
        broker_epoch=BrokerEpoch(message.broker_epoch),
        partitions=tuple(
            AlterPartitionItem(
                partition=partition(item.partition),
                leader_epoch=item.leader_epoch,
                partition_epoch=item.partition_epoch,
                isr=tuple(
                    (BrokerId(member.broker_id), BrokerEpoch(member.broker_epoch))
                    for member in item.isr
                ),
                recovering=item.is_recovering,
            )
            for item in message.partitions
        ),
    )


def alter_partition_response(response: AlterPartitionResponse) -> pb.AlterPartitionResponse:
    """Convert an `AlterPartitionResponse` to the protobuf message."""
    return pb.AlterPartitionResponse(
        error_code=response.error,
        partitions=[
            pb.AlterPartitionResult(
                partition=partition_message(result.partition),
                error_code=result.error,
                partition_epoch=result.partition_epoch,
            )
            for result in response.partitions
        ],
    )


def report_log_ends_requests(
    message: pb.ReportLogEndsRequest, count: int
) -> Iterator[ReportLogEndsRequest]:
    """Convert the protobuf message to one or more requests of at most `count` partitions each."""
    for start in range(0, max(1, len(message.partitions)), count):
        yield ReportLogEndsRequest(
            broker_id=BrokerId(message.broker_id),
            broker_epoch=BrokerEpoch(message.broker_epoch),
            partitions=tuple(
                LogEnd(
                    partition=partition(item.partition),
                    last_epoch=item.last_epoch,
                    log_end=item.log_end,
                )
                for item in message.partitions[start : start + count]
            ),
        )


def allocate_request(message: pb.AllocateProducerIdsRequest) -> AllocateProducerIdsRequest:
    """Convert the protobuf message to an `AllocateProducerIdsRequest`."""
    return AllocateProducerIdsRequest(
        broker_id=BrokerId(message.broker_id), broker_epoch=BrokerEpoch(message.broker_epoch)
    )


def allocate_response(response: AllocateProducerIdsResponse) -> pb.AllocateProducerIdsResponse:
    """Convert an `AllocateProducerIdsResponse` to the protobuf message."""
    return pb.AllocateProducerIdsResponse(
        error_code=response.error,
        producer_id_start=response.producer_id_start,
        producer_id_count=response.producer_id_count,
    )


def partition(message: common_pb2.TopicIdPartition) -> TopicIdPartition:
    """Convert the protobuf message to a `TopicIdPartition`."""
    return TopicIdPartition(TopicId(message.topic_id), PartitionIndex(message.partition))


def partition_message(name: TopicIdPartition) -> common_pb2.TopicIdPartition:
    """Convert a `TopicIdPartition` to the protobuf message."""
    return common_pb2.TopicIdPartition(topic_id=name.topic_id, partition=name.partition)
