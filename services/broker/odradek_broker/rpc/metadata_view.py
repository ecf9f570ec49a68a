"""Converts the metadata image to the messages that gRPC clients receive."""

from __future__ import annotations

from collections.abc import Iterable

from odradek_broker.listener_settings import GRPC, KAFKA, is_kafka_listener
from odradek_protocol.identity import NO_BROKER, BrokerId, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import BrokerState, MetadataImage, PartitionState, TopicState
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.topic_names import INTERNAL_TOPICS


def broker_infos(image: MetadataImage, listener: str = GRPC) -> list[pb.BrokerInfo]:
    """Describe all brokers that are not fenced. The gRPC endpoint of a broker is that of the client's `listener` or, if
    the broker has no such listener, that of GRPC.
    """
    return [
        pb.BrokerInfo(
            broker_id=broker.broker_id,
            grpc_endpoint=endpoint_of(broker, listener) or endpoint_of(broker, GRPC),
            kafka_endpoint=_kafka_endpoint(broker),
            rack=broker.rack or "",
        )
        for broker in image.brokers.values()
        if not broker.fenced
    ]


def _kafka_endpoint(broker: BrokerState) -> str:
    """Return host:port of the listener KAFKA, or of the first other Kafka listener, or "" if there is none."""
    names = [KAFKA, *(e.name for e in broker.endpoints if is_kafka_listener(e.name))]
    return next(filter(None, (endpoint_of(broker, name) for name in names)), "")


def endpoint_of(broker: BrokerState | None, listener: str) -> str:
    """Return host:port of a broker's listener, or "" if it has no such listener."""
    endpoint = None if broker is None else broker.endpoint(listener)
    return "" if endpoint is None else endpoint.address


def leader_hint(
    image: MetadataImage, leader_id: BrokerId, epoch: int, listener: str = GRPC
) -> common_pb2.LeaderHint:
    """Describe the current leader, with its endpoint on `listener` or, if it has none there, on GRPC."""
    leader = image.brokers.get(leader_id)
    return common_pb2.LeaderHint(
        leader_id=leader_id,
        leader_epoch=epoch,
        endpoint=endpoint_of(leader, listener) or endpoint_of(leader, GRPC),
    )


def topic_infos(
    image: MetadataImage, names: Iterable[str], errors: dict[str, ErrorCode] | None = None
) -> list[pb.TopicInfo]:
    """Describe topics. A topic that does not exist gets an error code: that from `errors`, or else
    UNKNOWN_TOPIC_OR_PARTITION.
    """
    infos: list[pb.TopicInfo] = []
    for name in names:
        topic = image.topic(name)
        if topic is None:
            code = (errors or {}).get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            infos.append(pb.TopicInfo(name=name, error_code=code))
        else:
            infos.append(topic_info(image, topic))
    return infos


def topic_info(image: MetadataImage, topic: TopicState) -> pb.TopicInfo:
    """Describe a topic with its partitions."""
    return pb.TopicInfo(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition_info(image, state) for state in topic.partitions],
    )


def all_topics(image: MetadataImage) -> list[TopicName]:
    """Return the names of all topics."""
    return list(image.topic_ids)


def _partition_info(image: MetadataImage, state: PartitionState) -> pb.PartitionInfo:
    has_leader = state.leader != NO_BROKER
    return pb.PartitionInfo(
        partition=state.partition,
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replicas=state.replicas,
        isr=state.isr,
        elr=state.elr,
        offline_replicas=[
            replica
            for replica in state.replicas
            if (broker := image.brokers.get(replica)) is None or broker.fenced
        ],
        adding_replicas=state.adding,
        removing_replicas=state.removing,
    )
