"""A broker refuses invalid data from a controller, logs the reason, continues to run, and follows
valid data again.

Brokers trust what a controller may decide (which topics exist, who leads). They also trust an epoch
that is too high, and another incarnation of the log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from odradek_broker.cluster.controller_client import ControllerClient
from odradek_broker.cluster.metadata_feed import MetadataFeed
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    IncarnationId,
    PartitionIndex,
    ProducerId,
    TopicId,
    TopicName,
)
from odradek_protocol.metadata.codec import decode_batch, encode_batch
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import (
    BrokerRegistrationChange,
    ClientQuota,
    Config,
    ConfigResourceType,
    FeatureLevel,
    MetadataBatch,
    MetadataRecord,
    NoOp,
    Partition,
    PartitionChange,
    ProducerIds,
    RegisterBroker,
    RemoveTopic,
    RestartClass,
    ScramMechanism,
    Topic,
    UnregisterBroker,
    UserScramCredential,
)
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_protocol.rpc.v1 import controller_service_pb2_grpc as pb_grpc
from odradek_runtime.grpc_endpoints import SERVER_OPTIONS
from tests.integration.broker.broker_cluster import BrokerCluster, batch
from tests.integration.broker.memory_controller import MemoryController, until

NUMBERS = (0, 1, -1, 2, 7, 1 << 31, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
NAMES = (
    "",
    "orders",
    "a/../b",
    "x" * 300,
    "x" * 70_000,
    "\x1b[2J",
    "\0",
    "größe",
    "__consumer_offsets",
)
ENTRIES = 15
NEWER_PROGRAM = "a newer program is needed"
LIFE_IS_OVER = (77, 102)  # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED: the broker must end


class Grammar:
    """Draws odd records and messages from a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def number(self) -> int:
        return self.draw.choice((*NUMBERS, self.draw.randrange(100)))

    def name(self) -> str:
        return self.draw.choice(NAMES)

    def brokers(self) -> tuple[BrokerId, ...]:
        return tuple(BrokerId(self.number()) for _ in range(self.draw.randrange(4)))

    def topic_id(self, image: MetadataImage) -> TopicId:
        known = list(image.topics)
        if known and self.draw.random() < 0.6:
            return self.draw.choice(known)
        return TopicId(self.draw.randbytes(self.draw.choice((16, 16, 16, 0, 3))))

    def record(self, image: MetadataImage) -> Any:
        draw = self.draw
        topic_id, index = self.topic_id(image), PartitionIndex(self.number())
        broker = draw.choice([*image.brokers, BrokerId(self.number())])
        # A broker must end when it hears that its own registration has ended, or that another process took its id.
        stranger = BrokerId(draw.choice([n for n in (*NUMBERS, *range(100)) if n != 1]))
        epoch = BrokerEpoch(self.number())
        makers = [
            lambda: Topic(topic_id=topic_id, name=TopicName(self.name())),
            lambda: Partition(
                topic_id=topic_id,
                partition=index,
                replicas=self.brokers(),
                isr=self.brokers(),
                leader=broker,
                elr=self.brokers(),
                leader_epoch=self.number(),
                partition_epoch=self.number(),
                lost=self.brokers(),
            ),
            lambda: PartitionChange(
                topic_id=topic_id,
                partition=draw.choice((index, PartitionIndex(0))),
                leader=draw.choice((None, broker)),
                isr=draw.choice((None, self.brokers())),
                replicas=draw.choice((None, self.brokers())),
                recovering=draw.choice((None, True)),
            ),
            lambda: RemoveTopic(topic_id=TopicId(draw.randbytes(16))),
            lambda: Config(
                resource_type=draw.choice(list(ConfigResourceType)),
                resource_name=self.name(),
                name=draw.choice(
                    (
                        "retention.ms",
                        "min.insync.replicas",
                        "segment.bytes",
                        "cleanup.policy",
                        "max.connections",
                        "unknown.name",
                        self.name(),
                    )
                ),
                value=draw.choice((None, "", "x", "-1", "0", "9" * 40, str(self.number()))),
            ),
            lambda: RegisterBroker(
                broker_id=stranger,
                incarnation_id=IncarnationId(draw.randbytes(16)),
                directory_ids=(DirectoryId(draw.randbytes(16)),),
                restart_class=draw.choice(list(RestartClass)),
                endpoints=(),
                broker_epoch=draw.choice((None, epoch)),
            ),
            lambda: BrokerRegistrationChange(
                broker_id=stranger,
                broker_epoch=epoch,
                fenced=draw.choice((None, True)),
            ),
            lambda: UnregisterBroker(broker_id=stranger, broker_epoch=epoch),
            lambda: ProducerIds(
                broker_id=broker, broker_epoch=epoch, next_producer_id=ProducerId(self.number())
            ),
            lambda: ClientQuota(
                entity=draw.choice(((), (("user", None),), (("ip", self.name()),), (("x", "y"),))),
                key=draw.choice(("producer_byte_rate", "request_percentage", self.name())),
                value=draw.choice((None, -1.0, 0.0, 1e300, float("inf"))),
            ),
            lambda: UserScramCredential(
                user=self.name(),
                mechanism=draw.choice(list(ScramMechanism)),
                salt=b"",
                stored_key=draw.randbytes(draw.choice((0, 32))),
                server_key=b"",
                iterations=self.number(),
            ),
            lambda: FeatureLevel(name=draw.choice(("unknown", self.name())), level=0),
            NoOp,
        ]
        return draw.choice(makers)()

    def payload(self, payload: bytes, image: MetadataImage) -> bytes:
        """Return what is sent in place of the payload of a log entry."""
        draw = self.draw
        if draw.random() < 0.2:
            at = draw.randrange(len(payload) + 1)
            return (
                payload[:at] + draw.randbytes(draw.randrange(6)) + payload[at + draw.randrange(4) :]
            )
        entry = decode_batch(payload)
        records = list(entry.records)
        for _ in range(draw.randrange(1, 4)):
            records.insert(draw.randrange(len(records) + 1), self.record(image))
        changed = MetadataBatch(controller_epoch=entry.controller_epoch, records=tuple(records))
        return encode_batch(changed, level=2)

    def feed_messages(
        self, message: pb.MetadataFeedResponse, image: MetadataImage
    ) -> Iterator[pb.MetadataFeedResponse]:
        draw = self.draw
        changed = pb.MetadataFeedResponse()
        changed.CopyFrom(message)
        for entry in changed.batches.batches:
            kind = draw.random()
            if kind < 0.6 and entry.payload:
                entry.payload = self.payload(entry.payload, image)
            elif kind < 0.7:
                entry.controller_epoch = draw.choice((-5, 0, entry.controller_epoch - 1))
            elif kind < 0.8:
                entry.offset = draw.choice((-1, 0, entry.offset - 1, entry.offset + 2))
        if draw.random() < 0.2:
            chunk = pb.MetadataSnapshotChunk(
                offset=self.number(),
                position=draw.choice((0, 0, self.number())),
                data=draw.randbytes(draw.randrange(200)),
                is_last=draw.random() < 0.7,
                crc32c=draw.randrange(1 << 32),
            )
            yield pb.MetadataFeedResponse(snapshot=chunk)
        yield changed
        if draw.random() < 0.1:
            yield changed

    def heartbeat(self, response: pb.HeartbeatResponse) -> None:
        """Change a response, but not so that a broker must stop or accept a higher epoch."""
        draw = self.draw
        code = draw.choice((0, self.number() % (1 << 15), -9, 9999))
        response.error_code = 0 if code in LIFE_IS_OVER else code
        response.controller_epoch = draw.choice((-1, 0, response.controller_epoch, -(1 << 31)))
        response.is_fenced = draw.random() < 0.3
        response.may_shutdown = draw.random() < 0.3
        response.is_active = draw.random() < 0.8
        response.active_controller_id = draw.choice((-1, 0, 99, response.active_controller_id))
        response.seq = draw.choice((response.seq, 0, self.number() % (1 << 31)))
        for _ in range(draw.randrange(3)):
            response.report_log_ends.add(
                topic_id=draw.randbytes(draw.choice((16, 0, 5))),
                partition=self.number() % (1 << 31),
            )


class HostileController(MemoryController):
    """A controller that sends the grammar's messages while `is_hostile` is set."""

    grammar = Grammar(0)
    is_hostile = False

    async def MetadataFeed(
        self, request: pb.MetadataFeedRequest, context: Any
    ) -> AsyncIterator[pb.MetadataFeedResponse]:
        async for message in super().MetadataFeed(request, context):
            if self.is_hostile:
                for changed in self.grammar.feed_messages(message, self.core.image):
                    yield changed
            else:
                yield message

    async def Heartbeat(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        await super().Heartbeat(request_iterator, _Changing(self, context))


class _Changing:
    """The context of a call whose responses are changed."""

    def __init__(self, controller: HostileController, context: Any) -> None:
        self._controller = controller
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, response: pb.HeartbeatResponse) -> None:
        if self._controller.is_hostile:
            self._controller.grammar.heartbeat(response)
        await self._context.write(response)


class TornEntry(pb_grpc.ControllerServiceServicer):
    """Sends a valid topic, and then once an entry whose second record is invalid."""

    def __init__(self) -> None:
        self.asked_from: list[int] = []
        topic = Topic(topic_id=TopicId(b"a" * 16), name=TopicName("sound"))
        torn = Topic(topic_id=TopicId(b"b" * 16), name=TopicName("torn"))
        self._sound = self._entry(1, topic)
        self._torn = self._entry(2, torn, RemoveTopic(topic_id=TopicId(b"c" * 16)))
        self._mended = self._entry(2, NoOp())

    @staticmethod
    def _entry(offset: int, *records: MetadataRecord) -> pb.MetadataBatch:
        payload = encode_batch(MetadataBatch(controller_epoch=1, records=records), level=2)
        return pb.MetadataBatch(offset=offset, controller_epoch=1, payload=payload)

    async def MetadataFeed(
        self, request: pb.MetadataFeedRequest, context: Any
    ) -> AsyncIterator[pb.MetadataFeedResponse]:
        self.asked_from.append(request.from_offset)
        second = self._torn if len(self.asked_from) == 1 else self._mended
        entries = [e for e in (self._sound, second) if e.offset >= request.from_offset]
        yield pb.MetadataFeedResponse(batches=pb.MetadataBatches(batches=entries, end_offset=3))
        await asyncio.Event().wait()


async def test_an_entry_that_does_not_fit_leaves_nothing_in_the_image(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = TornEntry()
    server = grpc.aio.server(options=SERVER_OPTIONS)
    pb_grpc.add_ControllerServiceServicer_to_server(source, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = ControllerClient([(1, "127.0.0.1", port)], None)
    created: set[TopicId] = set()
    feed = MetadataFeed(
        broker_id=BrokerId(1),
        controllers=client,
        on_change=lambda _image, delta: created.update(delta.topics_created) or (),
        on_refused=pytest.fail,
    )
    running = asyncio.create_task(feed.run())
    try:
        await until(lambda: running.done() or feed.image.offset == 2)
        assert not running.done(), running.exception()
        assert set(feed.image.topic_ids) == {"sound"}
        assert created == {TopicId(b"a" * 16)}
        assert source.asked_from[:2] == [0, 0], "the image is built again from the beginning"
        assert any(
            "metadata entry 2 cannot be applied" in str(getattr(record, "odradek_fields", {}))
            for record in caplog.records
        )
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()
        await server.stop(0)


async def test_a_planted_bug_in_the_refusal_is_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def keeps_the_torn_image(self: MetadataFeed, image: MetadataImage, before: Any) -> None:
        image.offset, image.epoch = before

    monkeypatch.setattr(MetadataFeed, "_refuse_image", keeps_the_torn_image)
    with pytest.raises(AssertionError):
        await test_an_entry_that_does_not_fit_leaves_nothing_in_the_image(caplog)


async def endure(directory: Path, seed: int) -> str:
    """Run a broker with a hostile controller that later sends valid data again; return the broker's
    log.
    """
    cluster = BrokerCluster(directory)
    controller = cluster.controller = HostileController(cluster_id=cluster.cluster_id)
    controller.grammar = Grammar(seed)
    async with cluster:
        broker = cluster.brokers[1]
        assert broker.process is not None
        await cluster.create_topic("orders")
        controller.is_hostile = True
        for number in range(ENTRIES):
            record = Config(
                resource_type=ConfigResourceType.TOPIC,
                resource_name="orders",
                name="retention.ms",
                value=str(1_000_000 + number),
            )
            await controller.host.decide(Workspace.write, record)
            await asyncio.wait([asyncio.ensure_future(broker.process.wait())], timeout=0.1)
            if broker.process.returncode is not None:
                # A damaged entry may read as a feature level that only a later program supports: the broker must end.
                assert NEWER_PROGRAM in broker.log_tail(), f"seed {seed}: {broker.log_tail()}"
                break
        controller.is_hostile = False
        if broker.process.returncode is not None:
            await broker.start()
        await broker_serves(cluster, seed)
        # Whatever the hostile records changed, the next start has the honest metadata.
        await broker.kill()
        await broker.start()
        await broker_serves(cluster, seed)
        return broker.log_path.read_text()


async def broker_serves(cluster: BrokerCluster, seed: int) -> None:
    broker = cluster.brokers[1]
    name = f"new-{len(cluster.controller.core.image.topics)}"
    assert broker.process is not None
    async with asyncio.timeout(60):
        while True:
            assert broker.process.returncode is None, f"seed {seed}: {broker.log_tail()}"
            try:
                await cluster.create_topic(name)
                result = await cluster.produce(name, batch([b"value"]), via=1)
            except Exception as error:
                reason: object = error
            else:
                reason = result.error_code
                if not reason:
                    return
                name += "x"
            print(f"seed {seed}: {reason}")
            await asyncio.sleep(0.3)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2))
async def test_a_broker_endures_its_controller(tmp_path: Path, seed: int) -> None:
    log = await endure(tmp_path, seed)
    assert "Metadata feed broke" in log


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 160))
async def test_brokers_endure_many_controllers(tmp_path: Path, seed: int) -> None:
    await endure(tmp_path, seed)
