"""A controller of one: the production deciding core, committed at once, in memory.

It lets broker processes be tested without a quorum: requests are decided, "committed" by replaying
their records, and fed to the brokers. Nothing survives `stop`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from odradek_metadata_quorum.controller import (
    Controller,
    ControllerSettings,
    Decision,
    partitions,
    producer_ids,
    registration,
    topics,
)
from odradek_metadata_quorum.controller import requests as rq
from odradek_metadata_quorum.controller.administration import configs, quotas
from odradek_metadata_quorum.controller.administration import configs as cf
from odradek_metadata_quorum.controller.administration.quotas import QuotaAlteration
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    IncarnationId,
    MetadataOffset,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.metadata.codec import decode_batch
from odradek_protocol.metadata.features import OWN_MAXIMA
from odradek_protocol.metadata.records import ConfigResourceType, Endpoint, RestartClass
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin_pb
from odradek_protocol.rpc.v1 import admin_service_pb2_grpc as admin_grpc
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_protocol.rpc.v1 import controller_service_pb2_grpc as pb_grpc
from odradek_runtime.grpc_endpoints import SERVER_OPTIONS

_TICK_S = 0.05


class MemoryController(pb_grpc.ControllerServiceServicer, admin_grpc.AdminServiceServicer):
    """Active from `start` to `stop`; `port` is where it listens."""

    def __init__(
        self, *, cluster_id: str, controller_id: int = 1, seed: int = 7, **settings: Any
    ) -> None:
        """`seed` chooses the ids of its topics, among other things."""
        self.controller_id = controller_id
        self.core = Controller(
            ControllerSettings(cluster_id=cluster_id, **settings),
            random.Random(seed),
        )
        self.port = 0
        self._log: list[pb.MetadataBatch] = []
        self._committed = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> str:
        """As controller.rpc.endpoints wants it."""
        return f"{self.controller_id}@127.0.0.1:{self.port}"

    async def start(self, credentials: grpc.ServerCredentials | None = None) -> None:
        """Listen, and be active."""
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        pb_grpc.add_ControllerServiceServicer_to_server(self, self._server)
        admin_grpc.add_AdminServiceServicer_to_server(self, self._server)
        if credentials is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        await self._server.start()
        for decision in self.core.became_active(1, _now_ms()):
            self.commit(decision)
        self._ticker = asyncio.create_task(self._tick())

    def restore(self, other: MemoryController) -> None:
        """Begin with the metadata of another one, before `start`."""
        self._log = list(other._log)
        for entry in self._log:
            for record in decode_batch(entry.payload).records:
                self.core.replay(MetadataOffset(entry.offset), 1, record)

    async def stop(self) -> None:
        """Be gone."""
        assert self._server is not None and self._ticker is not None  # noqa: PT018
        self._ticker.cancel()
        await asyncio.gather(self._ticker, return_exceptions=True)
        # Given up while the loop lives: gRPC's server wants it even when it is collected.
        server, self._server = self._server, None
        await server.stop(0)
        del server

    async def _tick(self) -> None:
        while True:
            for decision in self.core.tick(_now_ms()):
                self.commit(decision)
            await asyncio.sleep(0 if self.core.is_repairing else _TICK_S)

    def commit(self, decision: Decision[Any]) -> Any:
        if decision.records:
            offset = self.core.committed.offset + 1
            for record in decision.records:
                self.core.replay(offset, 1, record)  # type: ignore[arg-type]
            self._log.append(
                pb.MetadataBatch(offset=offset, controller_epoch=1, payload=decision.payload)
            )
            self._committed.set()
            self._committed = asyncio.Event()
        return decision.response

    def decide(self, handler: Callable[..., Any], *args: Any) -> Any:
        """Run a handler and commit its records at once; returns its response."""
        return self.commit(self.core.decide(_now_ms(), handler, *args))

    # --- ControllerService -----------------------------------------------------------------------

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterResponse:
        response = self.decide(
            registration.register,
            rq.RegisterRequest(
                cluster_id=request.cluster_id,
                broker_id=BrokerId(request.broker_id),
                incarnation_id=IncarnationId(request.incarnation_id),
                directory_ids=tuple(DirectoryId(one) for one in request.directory_ids),
                restart_class=RestartClass(request.restart_class),
                previous_broker_epoch=BrokerEpoch(request.previous_broker_epoch),
                endpoints=tuple(
                    Endpoint(name=one.name, host=one.host, port=one.port)
                    for one in request.listeners
                ),
                rack=request.rack or None,
                features=tuple(sorted(request.features.items())),
                feature_minima=tuple(sorted(request.feature_minima.items())),
                lost_partitions=frozenset(_partition(p) for p in request.lost_partitions),
            ),
        )
        return pb.RegisterResponse(
            error_code=response.outcome.error,
            error_message=response.outcome.message,
            broker_epoch=response.broker_epoch,
            active_controller_id=self.controller_id,
        )

    async def Heartbeat(
        self, requests: AsyncIterator[pb.HeartbeatRequest], context: Any
    ) -> AsyncIterator[pb.HeartbeatResponse]:
        broker_id = BrokerId(-1)
        try:
            async for request in requests:
                broker_id = BrokerId(request.broker_id)
                answer = self.commit(
                    self.core.heartbeat(
                        _now_ms(),
                        rq.HeartbeatRequest(
                            broker_id=broker_id,
                            broker_epoch=BrokerEpoch(request.broker_epoch),
                            seq=request.seq,
                            image_offset=request.image_offset,
                            want_fence=request.want_fence,
                            want_shutdown=request.want_shutdown,
                            offline_directory_ids=tuple(
                                DirectoryId(one) for one in request.offline_directories
                            ),
                            broken_partitions=frozenset(
                                _partition(p) for p in request.broken_partitions
                            ),
                        ),
                    )
                )
                yield pb.HeartbeatResponse(
                    error_code=answer.error,
                    seq=answer.seq,
                    is_active=True,
                    is_fenced=answer.is_fenced,
                    may_shutdown=answer.may_shutdown,
                    controller_epoch=1,
                    active_controller_id=self.controller_id,
                )
        finally:
            if broker_id >= 0:
                self.core.stream_broken(broker_id, _now_ms())

    async def AlterPartition(
        self, request: pb.AlterPartitionRequest, context: Any
    ) -> pb.AlterPartitionResponse:
        response = self.decide(
            partitions.alter_partitions,
            rq.AlterPartitionRequest(
                broker_id=BrokerId(request.broker_id),
                broker_epoch=BrokerEpoch(request.broker_epoch),
                partitions=tuple(
                    rq.AlterPartitionItem(
                        partition=_partition(one.partition),
                        leader_epoch=one.leader_epoch,
                        partition_epoch=one.partition_epoch,
                        isr=tuple(
                            (BrokerId(r.broker_id), BrokerEpoch(r.broker_epoch)) for r in one.isr
                        ),
                        recovering=one.is_recovering,
                    )
                    for one in request.partitions
                ),
            ),
        )
        return pb.AlterPartitionResponse(
            error_code=response.error,
            partitions=[
                pb.AlterPartitionResult(error_code=one.error, partition_epoch=one.partition_epoch)
                for one in response.partitions
            ],
        )

    async def MetadataFeed(
        self, request: pb.MetadataFeedRequest, context: Any
    ) -> AsyncIterator[pb.MetadataFeedResponse]:
        offset = request.from_offset
        while True:
            committed = self._committed
            batches = [one for one in self._log if one.offset >= offset]
            if batches:
                offset = batches[-1].offset + 1
                yield pb.MetadataFeedResponse(
                    batches=pb.MetadataBatches(batches=batches, end_offset=offset)
                )
            else:
                await committed.wait()

    async def AllocateProducerIds(
        self, request: pb.AllocateProducerIdsRequest, context: Any
    ) -> pb.AllocateProducerIdsResponse:
        response = self.decide(
            producer_ids.allocate_producer_ids,
            rq.AllocateProducerIdsRequest(
                broker_id=BrokerId(request.broker_id),
                broker_epoch=BrokerEpoch(request.broker_epoch),
            ),
        )
        return pb.AllocateProducerIdsResponse(
            error_code=response.error,
            producer_id_start=response.producer_id_start,
            producer_id_count=response.producer_id_count,
        )

    # --- AdminService ----------------------------------------------------------------------------

    async def CreateTopics(
        self, request: admin_pb.CreateTopicsRequest, context: Any
    ) -> admin_pb.CreateTopicsResponse:
        results = self.decide(
            topics.create_topics,
            rq.CreateTopicsRequest(
                topics=tuple(
                    rq.NewTopic(
                        name=one.name,
                        partition_count=one.partition_count,
                        replication_factor=one.replication_factor,
                        assignments=tuple(
                            tuple(BrokerId(b) for b in a.broker_ids) for a in one.assignments
                        ),
                        configs=tuple(one.configs.items()),
                    )
                    for one in request.topics
                ),
                validate_only=request.validate_only,
            ),
        )
        return admin_pb.CreateTopicsResponse(topics=[_topic_result(one) for one in results])

    async def DeleteTopics(
        self, request: admin_pb.DeleteTopicsRequest, context: Any
    ) -> admin_pb.DeleteTopicsResponse:
        results = self.decide(
            topics.delete_topics, rq.DeleteTopicsRequest(names=tuple(request.names))
        )
        return admin_pb.DeleteTopicsResponse(topics=[_topic_result(one) for one in results])

    async def AlterConfigs(
        self, request: admin_pb.AlterConfigsRequest, context: Any
    ) -> admin_pb.AlterConfigsResponse:
        outcomes = self.decide(
            configs.alter_configs,
            cf.AlterConfigsRequest(
                resources=tuple(
                    cf.AlterConfigsResource(
                        resource_type=ConfigResourceType(one.type),
                        resource_name=one.name,
                        operations=tuple(
                            cf.ConfigOperation(
                                name=op.name,
                                operation=cf.AlterOperation(op.operation),
                                value=op.value,
                            )
                            for op in one.operations
                        ),
                    )
                    for one in request.resources
                )
            ),
        )
        return admin_pb.AlterConfigsResponse(
            resources=[
                admin_pb.ConfigResourceResult(error_code=one.error, error_message=one.message)
                for one in outcomes
            ]
        )

    async def AlterQuotas(
        self, request: admin_pb.AlterQuotasRequest, context: Any
    ) -> admin_pb.AlterQuotasResponse:
        outcomes = self.decide(
            quotas.alter_quotas,
            tuple(
                QuotaAlteration(
                    entity=tuple(
                        (part.type, part.name if part.HasField("name") else None)
                        for part in one.entity
                    ),
                    key=one.key,
                    value=one.value if one.HasField("value") else None,
                )
                for one in request.entries
            ),
        )
        return admin_pb.AlterQuotasResponse(
            results=[
                admin_pb.ItemResult(error_code=one.error, error_message=one.message)
                for one in outcomes
            ]
        )


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for a condition of other objects."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # bounded by the timeout
            await asyncio.sleep(0.01)


async def registered(controller: MemoryController) -> int:
    """The broker epoch of broker 4, which is registered by this."""
    answer = await controller.Register(
        pb.RegisterRequest(
            cluster_id="c",
            broker_id=4,
            incarnation_id=bytes(16),
            directory_ids=[bytes(16)],
            restart_class=pb.RESTART_CLASS_POWER,
            features=dict(OWN_MAXIMA),
        ),
        None,
    )
    return int(answer.broker_epoch)


def _topic_result(one: rq.TopicResult) -> admin_pb.TopicResult:
    return admin_pb.TopicResult(
        name=TopicName(one.name),
        topic_id=one.topic_id,
        error_code=one.outcome.error,
        error_message=one.outcome.message,
        partition_count=one.partition_count,
        replication_factor=one.replication_factor,
    )


def _partition(wire: Any) -> TopicIdPartition:
    return TopicIdPartition(TopicId(wire.topic_id), PartitionIndex(wire.partition))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
