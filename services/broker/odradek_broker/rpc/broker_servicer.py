"""BrokerService: records, offsets, metadata and producer ids for gRPC clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from google.protobuf.message import Message

from odradek_broker.access.quotas import Quotas
from odradek_broker.access.rights import may_create
from odradek_broker.cluster import metadata_changes
from odradek_broker.cluster.controller_client import ControllerClient
from odradek_broker.cluster.producer_ids import ProducerIdSource
from odradek_broker.cluster.topic_creation import TopicCreation
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.outcomes import OffsetOutcome
from odradek_broker.rpc.callers import (
    MethodHandler,
    ServerContext,
    current_caller,
    in_turns,
    put_in_turns,
    results_in_turns,
)
from odradek_broker.rpc.fetch_stream import FetchStream
from odradek_broker.rpc.metadata_view import (
    all_topics,
    broker_infos,
    leader_hint,
    topic_info,
    topic_infos,
)
from odradek_broker.rpc.produce_stream import ProduceStream
from odradek_protocol.access import Operation
from odradek_protocol.identity import ClusterId, LeaderEpoch, PartitionIndex, TopicId, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage, PartitionState
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import broker_service_pb2_grpc as pb_grpc

_SERVICE = "odradek.v1.BrokerService"


class BrokerServicer(pb_grpc.BrokerServiceServicer):
    """The servicer of BrokerService."""

    def __init__(
        self,
        *,
        cluster_id: ClusterId,
        partitions: LocalPartitions,
        controllers: ControllerClient,
        producer_ids: ProducerIdSource,
        topic_creation: TopicCreation,
        quotas: Quotas,
    ) -> None:
        self._cluster_id = cluster_id
        self._partitions = partitions
        self._controllers = controllers
        self._producer_ids = producer_ids
        self._topic_creation = topic_creation
        self._quotas = quotas

    # The generated types allow only generators; gRPC also accepts a coroutine that reads and writes the stream.
    async def Produce(self, _requests: object, context: ServerContext) -> None:  # type: ignore[override]
        """Serve a stream of produce requests (`ProduceStream`)."""
        await ProduceStream(self._partitions, current_caller(), self._quotas, context).serve()

    # The generated types allow only generators; gRPC also accepts a coroutine that reads and writes the stream.
    async def Fetch(self, _requests: object, context: ServerContext) -> None:  # type: ignore[override]
        """Serve a stream on which records are sent to a client (`FetchStream`)."""
        await FetchStream(self._partitions, current_caller(), self._quotas, context).serve()

    async def ListOffsets(
        self, request: pb.ListOffsetsRequest, context: ServerContext
    ) -> pb.ListOffsetsResponse:
        """Look up an offset in each partition, for several partitions at the same time."""
        results = await results_in_turns(
            request.partitions, lambda lookup: self._list_offset(lookup, request.read_committed)
        )
        response = pb.ListOffsetsResponse()
        await put_in_turns(response.partitions, results)
        return response

    async def _list_offset(
        self, lookup: pb.ListOffsetsPartition, read_committed: bool
    ) -> pb.ListOffsetsResult:
        topic, index = TopicName(lookup.topic), PartitionIndex(lookup.partition)
        partition = self._partitions.find(topic, index)
        if isinstance(partition, ErrorCode):
            outcome = OffsetOutcome(partition)
        else:
            outcome = await partition.offset_at(
                lookup.timestamp_ms,
                read_committed=read_committed,
                current_leader_epoch=LeaderEpoch(lookup.current_leader_epoch),
            )
        result = pb.ListOffsetsResult(
            topic=lookup.topic,
            partition=lookup.partition,
            error_code=outcome.error,
            timestamp_ms=outcome.timestamp_ms,
            offset=outcome.offset,
            leader_epoch=outcome.leader_epoch,
        )
        if outcome.error is not ErrorCode.NONE:
            now = self._partitions.leader_of(topic, index)
            result.leader.CopyFrom(
                leader_hint(
                    self._partitions.image,
                    now.broker_id,
                    now.leader_epoch,
                    current_caller().listener,
                )
            )
        return result

    async def OffsetForLeaderEpoch(
        self, request: pb.OffsetForLeaderEpochRequest, context: ServerContext
    ) -> pb.OffsetForLeaderEpochResponse:
        """Return the end offset of a leader epoch in each partition."""
        response = pb.OffsetForLeaderEpochResponse()
        async for lookup in in_turns(request.partitions):
            partition = self._partitions.find(
                TopicName(lookup.topic), PartitionIndex(lookup.partition)
            )
            if isinstance(partition, ErrorCode):
                outcome = OffsetOutcome(partition)
            else:
                outcome = partition.end_of_epoch(
                    LeaderEpoch(lookup.leader_epoch),
                    current_leader_epoch=LeaderEpoch(lookup.current_leader_epoch),
                )
            response.partitions.add(
                topic=lookup.topic,
                partition=lookup.partition,
                error_code=outcome.error,
                leader_epoch=outcome.leader_epoch,
                end_offset=outcome.offset,
            )
        return response

    async def Metadata(
        self, request: pb.MetadataRequest, context: ServerContext
    ) -> pb.MetadataResponse:
        """Describe topics from the metadata image. Create missing topics if the client and the cluster allow it."""
        caller = current_caller()
        errors: dict[str, ErrorCode] = {}
        named = list(dict.fromkeys(request.topics))  # each topic is described once
        if request.allow_auto_topic_creation and self._topic_creation.is_enabled:
            creatable = [name async for name in in_turns(named) if caller.has(may_create(name))]
            errors = await self._topic_creation.ensure(creatable)
        if request.min_metadata_offset > 0:
            await metadata_changes.at_least(
                self._partitions,
                request.min_metadata_offset,
                timeout_s=metadata_changes.READABLE_S_MAX,
            )
        image = self._partitions.image
        # The response has the offset of the image before the topics are added to the response, so no topic in it is
        # older than that offset.
        response = self._metadata(image, [])
        hidden: list[str] = []
        async for name in in_turns(all_topics(image) if request.all_topics else named):
            if caller.may(Operation.DESCRIBE, name):
                response.topics.extend(topic_infos(image, [name], errors))
            else:
                hidden.append(name)
        # An error for a topic that may not be described is returned only if the caller named the topic.
        if not request.all_topics:
            async for name in in_turns(sorted(hidden)):
                response.topics.add(
                    name=name,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    error_message=caller.denied_topic("Metadata", Operation.DESCRIBE, name),
                )
        return response

    async def WatchMetadata(
        self, request: pb.WatchMetadataRequest, context: ServerContext
    ) -> AsyncIterator[pb.WatchMetadataResponse]:
        """Send all brokers and the requested topics first, and then their changes, in at most one message per iteration
        of the event loop.
        """
        caller = current_caller()
        named = list(dict.fromkeys(request.topics))
        changed = asyncio.Event()
        changed.set()
        unwatch = self._partitions.watch_image(lambda _: changed.set())
        sent: dict[TopicId, list[PartitionState]] = {}
        sent_names: dict[TopicId, str] = {}
        sent_brokers: list[pb.BrokerInfo] = []
        sent_offline: frozenset[int] = frozenset()
        is_first = True
        try:
            while True:
                await changed.wait()
                changed.clear()
                image = self._partitions.image
                brokers = broker_infos(image, current_caller().listener)
                offline = frozenset(b.broker_id for b in image.brokers.values() if b.fenced)
                names = all_topics(image) if request.all_topics else named
                infos: list[pb.TopicInfo] = []
                present: set[TopicId] = set()
                for name in names:
                    topic = image.topic(name)
                    if topic is None or not caller.may(Operation.DESCRIBE, name):
                        continue
                    present.add(topic.topic_id)
                    has_changed = sent.get(topic.topic_id) != topic.partitions
                    if has_changed or offline != sent_offline:
                        sent[topic.topic_id] = topic.partitions.copy()
                        sent_names[topic.topic_id] = topic.name
                        infos.append(topic_info(image, topic))
                deleted = [topic_id for topic_id in sent if topic_id not in present]
                removed = [sent_names.pop(topic_id) for topic_id in deleted]
                for topic_id in deleted:
                    del sent[topic_id]
                if is_first or infos or removed or brokers != sent_brokers:
                    sent_brokers, sent_offline = brokers, offline
                    yield pb.WatchMetadataResponse(
                        metadata=self._metadata(image, infos, brokers),
                        removed_topics=removed,
                        is_full=is_first,
                    )
                    is_first = False
        finally:
            unwatch()

    def _metadata(
        self,
        image: MetadataImage,
        topics: list[pb.TopicInfo],
        brokers: list[pb.BrokerInfo] | None = None,
    ) -> pb.MetadataResponse:
        infos = broker_infos(image, current_caller().listener) if brokers is None else brokers
        return pb.MetadataResponse(
            cluster_id=self._cluster_id,
            brokers=infos,
            topics=topics,
            controller_id=min((info.broker_id for info in infos), default=-1),
            metadata_offset=image.offset,
        )

    async def InitProducerId(
        self, request: pb.InitProducerIdRequest, context: ServerContext
    ) -> pb.InitProducerIdResponse:
        """Return a new producer id with epoch 0, for an idempotent producer without transactions.

        A request with a transactional id is refused with UNSUPPORTED_VERSION, because transactional producers must call
        TransactionService.InitProducer.
        """
        if request.transactional_id:
            return pb.InitProducerIdResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION, producer_id=-1, producer_epoch=-1
            )
        code, producer_id = await self._producer_ids.next()
        return pb.InitProducerIdResponse(
            error_code=code,
            producer_id=producer_id,
            producer_epoch=0 if code is ErrorCode.NONE else -1,
        )


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def add_to(server: grpc.aio.Server, servicer: BrokerServicer) -> str:
    """Register the servicer, and return the service's full name.

    The generated registration function is not used, because Produce and Fetch handle encoded messages
    (`record_messages`).
    """
    methods: dict[str, MethodHandler] = {
        "Produce": grpc.stream_stream_rpc_method_handler(
            servicer.Produce, response_serializer=_serialize
        ),
        "Fetch": grpc.stream_stream_rpc_method_handler(servicer.Fetch),
        "WatchMetadata": grpc.unary_stream_rpc_method_handler(
            servicer.WatchMetadata,
            request_deserializer=pb.WatchMetadataRequest.FromString,
            response_serializer=_serialize,
        ),
    }
    for method, request in (
        (servicer.ListOffsets, pb.ListOffsetsRequest),
        (servicer.OffsetForLeaderEpoch, pb.OffsetForLeaderEpochRequest),
        (servicer.Metadata, pb.MetadataRequest),
        (servicer.InitProducerId, pb.InitProducerIdRequest),
    ):
        methods[method.__name__] = grpc.unary_unary_rpc_method_handler(
            method, request_deserializer=request.FromString, response_serializer=_serialize
        )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    return _SERVICE
