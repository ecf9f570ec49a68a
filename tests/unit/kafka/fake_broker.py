"""A broker in memory for tests of the Kafka handlers: metadata, logs that are lists, and a
controller that accepts everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odradek_broker.access.authorizer import Authorizer, EverybodyMay
from odradek_broker.coordination.connection_order import ConnectionNumbers
from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.transaction_coordinator import TransactionCoordinator
from odradek_broker.coordination.transactional_offsets import TransactionalOffsets
from odradek_broker.groups.messages import FetchedOffsets, OffsetsAnswer
from odradek_broker.kafka.registry import Registry
from odradek_broker.kafka.request import ClientSession, Encoded, Request
from odradek_broker.kafka.services import LocalLog, Services
from odradek_broker.listener_settings import KAFKA
from odradek_broker.replication.hanging_transactions import HangingTransactions
from odradek_broker.replication.local_partitions import FetchWant
from odradek_broker.replication.outcomes import (
    LeaderNow,
    OffsetOutcome,
    ProduceOutcome,
    ReadOutcome,
)
from odradek_broker.settings import BrokerSettings
from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.messages import Added, Ended, Initialized
from odradek_protocol.identity import (
    BrokerId,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicName,
)
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import MESSAGES
from odradek_protocol.kafka.response_encoding import encode_message
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import (
    BrokerRegistrationChange,
    Endpoint,
    FeatureLevel,
    Partition,
    RegisterBroker,
    RestartClass,
    Topic,
)
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import controller_service_pb2 as controller_pb

TOPICS = {"orders": TopicId(b"o" * 16), "payments": TopicId(b"p" * 16)}


def image() -> MetadataImage:
    """Return the metadata of one broker, which leads two topics of two partitions each."""
    made = MetadataImage()
    records: list[Any] = [
        RegisterBroker(
            broker_id=BrokerId(1),
            incarnation_id=IncarnationId(b"i" * 16),
            directory_ids=(DirectoryId(b"d" * 16),),
            restart_class=RestartClass.CLEAN,
            endpoints=(Endpoint(name=KAFKA, host="broker-1", port=9092),),
            rack="east",
        ),
        FeatureLevel(name="group.version", level=1),
        FeatureLevel(name="metadata.version", level=2),
    ]
    for name, topic_id in TOPICS.items():
        records.append(Topic(topic_id=topic_id, name=TopicName(name)))
        records += [
            Partition(
                topic_id=topic_id,
                partition=PartitionIndex(index),
                replicas=(BrokerId(1),),
                isr=(BrokerId(1),),
                leader=BrokerId(1),
            )
            for index in range(2)
        ]
    for number, record in enumerate(records):
        made.replay(MetadataOffset(number), 1, record)
    epoch = made.brokers[BrokerId(1)].broker_epoch
    made.replay(
        MetadataOffset(len(records)),
        1,
        BrokerRegistrationChange(broker_id=BrokerId(1), broker_epoch=epoch, fenced=False),
    )
    return made


class FakePartitions:
    """LocalPartitions over lists; outcomes in `held` wait until the test releases them."""

    def __init__(self) -> None:
        self.image = image()
        self.appended: list[tuple[str | bytes, int, bytes]] = []
        self.holds = False
        self.held: list[Callable[[], None]] = []
        self.records: dict[tuple[str | bytes, int], list[bytes]] = {}
        self.never = asyncio.Event()
        self.fetch_waits = False
        self.cancelled = 0
        self.fetched: list[FetchWant] = []
        self.fetched_bytes_max: list[int] = []

    def find(self, topic: str | bytes, partition: int) -> FakePartition:
        return FakePartition(self, topic, partition)

    async def fetch(
        self, wants: Sequence[Any], *, bytes_max: int, hold: Callable[[int], None], **_: Any
    ) -> list[ReadOutcome]:
        self.fetched += wants
        self.fetched_bytes_max.append(bytes_max)
        hold(bytes_max)
        if self.fetch_waits:
            try:
                await self.never.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        outcomes = []
        for want in wants:
            key = want.partition.topic, want.partition.index
            records = self.records.get(key, [])[want.offset :]
            outcomes.append(
                ReadOutcome(
                    ErrorCode.NONE,
                    records=records,
                    size_bytes=sum(map(len, records)),
                    high_watermark=Offset(want.offset + len(records)),
                    log_start_offset=Offset(0),
                )
            )
        return outcomes

    def leader_of(self, _topic: Any, _partition: int) -> LeaderNow:
        return LeaderNow(BrokerId(1), LeaderEpoch(0))

    def watch_image(self, watcher: Callable[[MetadataImage], None]) -> Callable[[], None]:
        return lambda: None

    def watch_leadership(self, *_: Any) -> None: ...


@dataclass(frozen=True)
class FakePartition:
    """One partition of FakePartitions, which has every partition that is looked up."""

    partitions: FakePartitions
    topic: str | bytes
    index: int

    def produce(
        self,
        records: Any,
        *,
        acks: int,
        timeout_ms: int,
        on_done: Callable[[ProduceOutcome], None],
        **_: Any,
    ) -> None:
        partitions = self.partitions
        partitions.appended.append((self.topic, self.index, bytes(records)))
        outcome = ProduceOutcome(ErrorCode.NONE, Offset(len(partitions.appended) - 1))
        if partitions.holds:
            partitions.held.append(lambda: on_done(outcome))
        else:
            on_done(outcome)

    async def offset_at(self, *_: Any, **__: Any) -> OffsetOutcome:
        return OffsetOutcome(ErrorCode.NONE, Offset(42))

    def end_of_epoch(self, *_: Any, **__: Any) -> OffsetOutcome:
        return OffsetOutcome(ErrorCode.NONE, Offset(7), -1, LeaderEpoch(0))

    async def delete_records(self, *_: Any, **__: Any) -> OffsetOutcome:
        return OffsetOutcome(ErrorCode.NONE, Offset(3))

    def producers(self) -> dict[ProducerId, Any]:
        return {}

    def gate_produce(self, outcome: ProduceOutcome, *, acks: int) -> ProduceOutcome:
        return outcome

    def gate_read(self, outcome: ReadOutcome) -> ReadOutcome:
        return outcome


class FakeControllers:
    """A controller that accepts every request, and records them."""

    active = None

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    async def call(
        self, method: str, request: Any, *, timeout_s: float, is_admin: bool = False
    ) -> Any:
        self.calls.append((method, request))
        response = self._response(method, request)
        if hasattr(response, "metadata_offset"):
            response.metadata_offset = -1  # every image shows it
        return response

    def _response(self, method: str, request: Any) -> Any:
        match method:
            case "CreateTopics" | "CreatePartitions":
                answer = getattr(pb, f"{method}Response")()
                answer.topics.extend(pb.TopicResult(name=one.name) for one in request.topics)
                return answer
            case "DeleteTopics":
                return pb.DeleteTopicsResponse(
                    topics=[pb.TopicResult(topic_id=one) for one in request.topic_ids]
                )
            case "AlterConfigs":
                return pb.AlterConfigsResponse(
                    resources=[pb.ConfigResourceResult(name=one.name) for one in request.resources]
                )
            case "CreateAcls":
                return pb.CreateAclsResponse(results=[pb.ItemResult() for _ in request.entries])
            case "DeleteAcls":
                return pb.DeleteAclsResponse(
                    results=[pb.DeleteAclsResult() for _ in request.filters]
                )
            case "AlterQuotas":
                return pb.AlterQuotasResponse(results=[pb.ItemResult() for _ in request.entries])
            case "AlterScramUsers":
                return pb.AlterScramUsersResponse(
                    results=[pb.ScramUserResult(name=one.name) for one in request.upsertions]
                )
            case "DescribeQuorum":
                return controller_pb.DescribeQuorumResponse()
            case _:
                return getattr(pb, f"{method}Response")()


class FakeProducerIds:
    async def next(self) -> tuple[ErrorCode, ProducerId]:
        return ErrorCode.NONE, ProducerId(5)


class FakeCreation:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_enabled = True

    async def ensure(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        self.asked += names
        return dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)

    async def ensure_internal(self, *_: Any, **__: Any) -> ErrorCode:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE


class AgreeableGroups(GroupCoordinator):
    """A group coordinator without groups, which accepts, returns and deletes any offsets."""

    def commit_soon(self, request: Any, shape: Any) -> Any:
        answer = OffsetsAnswer(partitions=dict.fromkeys(request.offsets, ErrorCode.NONE))
        done = asyncio.get_running_loop().create_future()
        done.set_result(shape(answer))
        return done

    async def fetch_offsets(self, request: Any) -> FetchedOffsets:
        return FetchedOffsets(error=ErrorCode.NONE, offsets=dict.fromkeys(request.partitions or ()))

    async def delete_offsets(self, group_id: Any, partitions: Any) -> OffsetsAnswer:
        return OffsetsAnswer(partitions=dict.fromkeys(partitions, ErrorCode.NONE))


class AgreeableTransactions(TransactionCoordinator):
    """A transaction coordinator without transactions, which accepts every request."""

    def __init__(self, settings: BrokerSettings, partitions: Any, creation: Any) -> None:
        nothing: Any = None
        super().__init__(
            broker_id=BrokerId(1),
            settings=settings,
            partitions=partitions,
            topic_creation=creation,
            producer_ids=nothing,
            marker_streams=nothing,
            write_marker_here=nothing,
            connection_numbers=ConnectionNumbers(),
        )

    async def init_producer(self, request: Any, **_: Any) -> Initialized:
        return Initialized(identity=ProducerIdentity(ProducerId(5), ProducerEpoch(0)))

    async def add_partitions(self, request: Any, **_: Any) -> Added:
        return Added()

    async def end_transaction(self, request: Any, **_: Any) -> Ended:
        return Ended(next_identity=ProducerIdentity(ProducerId(5), ProducerEpoch(1)))


class AgreeableOffsets(TransactionalOffsets):
    """A store of offsets that accepts all offsets of transactions."""

    def __init__(self) -> None:
        """Make it without the coordinator that the real class needs."""

    async def commit(self, request: Any, **_: Any) -> OffsetsAnswer:
        return OffsetsAnswer(partitions=dict.fromkeys(request.commit.offsets, ErrorCode.NONE))


class AgreeableHanging(HangingTransactions):
    """A check for hanging transactions that ends every transaction on request."""

    def __init__(self) -> None:
        """Make it without the partitions that the real class needs."""

    async def end(self, *_: Any) -> ErrorCode:
        return ErrorCode.NONE


class FakeInventory:
    offline_reason = ""
    full_reason = ""

    def local_logs(self) -> Sequence[LocalLog]:
        return [LocalLog(TOPICS["orders"], 0, 1234)]

    def disk_bytes(self) -> tuple[int, int]:
        return 1000, 400


def services(authorizer: Authorizer | None = None, **settings: Any) -> Services:
    """Return all services that a handler needs; `settings` replace the defaults."""
    partitions: Any = FakePartitions()
    made = BrokerSettings(
        node_id=1, log_dir=Path("/nowhere"), controllers=((1, "127.0.0.1", 1),), **settings
    )
    creation: Any = FakeCreation()
    return Services(
        settings=made,
        broker_id=BrokerId(1),
        cluster_id="cluster",
        partitions=partitions,
        controllers=FakeControllers(),
        producer_ids=FakeProducerIds(),
        topic_creation=creation,
        inventory=FakeInventory(),
        authorizer=authorizer or EverybodyMay(),
        groups=AgreeableGroups(settings=made, partitions=partitions, topic_creation=creation),
        transactions=AgreeableTransactions(made, partitions, creation),
        transactional_offsets=AgreeableOffsets(),
        hanging=AgreeableHanging(),
    )


def request(
    served: Services, key: ApiKey, version: int, message: Any, *, principal: str = "User:alice"
) -> Request:
    """Return a request of a client that has logged in."""
    return Request(
        key=key,
        version=version,
        client_id="test",
        message=message,
        session=ClientSession(listener=KAFKA, host="127.0.0.1", principal=principal),
        services=served,
    )


async def answered(served: Services, key: ApiKey, version: int, message: Any) -> Any:
    """Let the handler serve a message that was encoded and decoded; return the response that a client decodes."""
    handler = Registry(served).find(key, version)
    assert handler is not None
    body = memoryview(bytearray(encode_message(message, version)))
    result = handler.handle(request(served, key, version, handler.decode(version, body)))
    response = await result if isinstance(result, Awaitable) else result
    if isinstance(response, Encoded):
        body = memoryview(b"".join(response.buffers))
        return MESSAGES[key].response.decode(body, version=version)
    return response
