"""The broker's connections to controllers, against servers in this process: metadata feed, calls,
heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509

from odradek.cli.certificate_authority import CertificateAuthority
from odradek_broker.cluster import metadata_feed
from odradek_broker.cluster.controller_client import ControllerClient, NoController
from odradek_broker.cluster.heartbeat import (
    LOOP_AGE_MAX_MS,
    Heartbeat,
    HeartbeatUpdate,
    Lease,
    LoopTick,
)
from odradek_broker.cluster.heartbeat_threads import HeartbeatThreads
from odradek_broker.cluster.metadata_feed import MetadataFeed
from odradek_metadata_quorum.controller import registration
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    ControllerId,
    MetadataOffset,
    TopicId,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import OWN_MAXIMA
from odradek_protocol.metadata.image import MetadataDelta, MetadataImage
from odradek_protocol.metadata.records import NoOp, Topic
from odradek_protocol.metadata.snapshot import snapshot_bytes
from odradek_protocol.records.hashes import crc32c
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin_pb
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_protocol.rpc.v1 import controller_service_pb2_grpc as pb_grpc
from odradek_runtime.clock import boottime_ms, monotonic_ms
from odradek_runtime.cluster_identity import ClusterIdentity
from odradek_runtime.grpc_endpoints import SERVER_OPTIONS
from odradek_runtime.tls import TlsFiles
from tests.integration.broker.memory_controller import MemoryController, registered, until


class Standby(pb_grpc.ControllerServiceServicer):
    """A controller that is not active, and knows the active one."""

    def __init__(self, active: int = -1) -> None:
        self.active = active
        self.asked = 0

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterResponse:
        self.asked += 1
        return pb.RegisterResponse(
            error_code=ErrorCode.NOT_CONTROLLER, active_controller_id=self.active
        )


class SnapshotSource(pb_grpc.ControllerServiceServicer):
    """A controller that sends its metadata as a snapshot, which is damaged the first time."""

    def __init__(self, image: MetadataImage) -> None:
        self.data = snapshot_bytes(image)
        self.offset = image.offset
        self.served = 0

    async def MetadataFeed(
        self, request: pb.MetadataFeedRequest, context: Any
    ) -> AsyncIterator[pb.MetadataFeedResponse]:
        self.served += 1
        step = 100
        for position in range(0, len(self.data), step):
            is_last = position + step >= len(self.data)
            checksum = crc32c(self.data) ^ (self.served == 1)
            yield pb.MetadataFeedResponse(
                snapshot=pb.MetadataSnapshotChunk(
                    offset=self.offset,
                    position=position,
                    data=self.data[position : position + step],
                    is_last=is_last,
                    crc32c=checksum if is_last else 0,
                )
            )
        await asyncio.Event().wait()


async def _serve(servicer: Any) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    pb_grpc.add_ControllerServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def test_the_feed_brings_the_image_up_to_date(controller: MemoryController) -> None:
    client = ControllerClient([(1, "127.0.0.1", controller.port)], None)
    changes: list[MetadataDelta] = []
    feed = MetadataFeed(
        broker_id=BrokerId(1),
        controllers=client,
        on_change=lambda _image, delta: changes.append(delta) or (),
        on_refused=pytest.fail,
    )
    task = asyncio.create_task(feed.run())
    await until(lambda: feed.image.offset == controller.core.committed.offset)
    assert feed.image.features == controller.core.committed.features
    assert changes
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await client.close()


async def test_a_snapshot_is_applied_whole_and_a_damaged_one_never() -> None:
    image = MetadataImage()
    image.replay(MetadataOffset(5), 3, NoOp())
    ids = [TopicId(bytes([n]) * 16) for n in range(20)]
    for number, topic_id in enumerate(ids):
        image.replay(
            MetadataOffset(6 + number), 3, Topic(topic_id=topic_id, name=TopicName(f"t{number}"))
        )
    source = SnapshotSource(image)
    server, port = await _serve(source)
    client = ControllerClient([(1, "127.0.0.1", port)], None)
    created: set[TopicId] = set()
    feed = MetadataFeed(
        broker_id=BrokerId(1),
        controllers=client,
        on_change=lambda _image, delta: created.update(delta.topics_created) or (),
        on_refused=pytest.fail,
    )
    task = asyncio.create_task(feed.run())
    await until(lambda: feed.image.offset == image.offset and len(created) == 20)
    assert source.served >= 2, "the damaged one was taken"
    assert set(feed.image.topics) == set(ids)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await client.close()
    await server.stop(0)


class CutOff(pb_grpc.ControllerServiceServicer):
    """A standby controller that the broker can reach and the leader cannot, so that it receives no
    commits.
    """

    async def MetadataFeed(
        self, request: pb.MetadataFeedRequest, context: Any
    ) -> AsyncIterator[pb.MetadataFeedResponse]:
        yield pb.MetadataFeedResponse(batches=pb.MetadataBatches(end_offset=1))
        await asyncio.Event().wait()


async def test_a_feed_does_not_stay_with_a_standby_that_hears_nothing(
    controller: MemoryController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats continue all the time, so nothing else would show the broker that the feed is
    stuck.
    """
    monkeypatch.setattr(metadata_feed, "_STANDBY_S", 0.1)
    server, port = await _serve(CutOff())
    client = ControllerClient([(2, "127.0.0.1", port), (1, "127.0.0.1", controller.port)], None)
    feed = MetadataFeed(
        broker_id=BrokerId(1), controllers=client, on_change=lambda *_: (), on_refused=pytest.fail
    )
    task = asyncio.create_task(feed.run())
    await until(lambda: feed.image.offset == controller.core.committed.offset)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await client.close()
    await server.stop(0)


class OtherHistory(pb_grpc.ControllerServiceServicer):
    """A controller whose metadata log has another history than the one that the broker followed."""

    async def MetadataFeed(
        self, request: pb.MetadataFeedRequest, context: Any
    ) -> AsyncIterator[pb.MetadataFeedResponse]:
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "entry 4 has epoch 2 here")
        yield pb.MetadataFeedResponse()


async def test_a_feed_that_is_refused_for_good_is_told(caplog: pytest.LogCaptureFixture) -> None:
    server, port = await _serve(OtherHistory())
    client = ControllerClient([(1, "127.0.0.1", port)], None)
    feed = MetadataFeed(
        broker_id=BrokerId(1), controllers=client, on_change=lambda *_: (), on_refused=pytest.fail
    )
    task = asyncio.create_task(feed.run())
    await until(lambda: "Controller refused to send metadata to this broker" in caplog.messages)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await client.close()
    await server.stop(0)


async def test_a_call_finds_the_active_controller(controller: MemoryController) -> None:
    standby = Standby(active=1)
    server, port = await _serve(standby)
    client = ControllerClient(
        [(2, "127.0.0.1", port), (3, "127.0.0.1", 1), (1, "127.0.0.1", controller.port)], None
    )
    request = pb.RegisterRequest(
        cluster_id="c",
        broker_id=4,
        incarnation_id=bytes(16),
        directory_ids=[bytes(16)],
        restart_class=pb.RESTART_CLASS_POWER,
        features=dict(OWN_MAXIMA),
    )
    answer = await client.call("Register", request, timeout_s=5)
    assert answer.error_code == 0
    assert client.active == 1
    asked = standby.asked
    await client.call("Register", request, timeout_s=5)
    assert standby.asked == asked, "it forgot who is active"
    refused = await client.call(
        "CreateTopics",
        admin_pb.CreateTopicsRequest(topics=[admin_pb.NewTopic(name="bad/name")]),
        timeout_s=5,
        is_admin=True,
    )
    assert refused.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    await client.close()
    await server.stop(0)


async def test_without_an_active_controller_everyone_asked_is_named() -> None:
    server, port = await _serve(Standby())
    client = ControllerClient([(1, "127.0.0.1", port), (2, "127.0.0.1", 1)], None)
    with pytest.raises(NoController) as told:
        await client.call("Register", pb.RegisterRequest(broker_id=4), timeout_s=3)
    await client.close()
    await server.stop(0)
    assert "controller 1" in str(told.value)
    assert "not the active controller" in str(told.value)
    assert "controller 2 at 127.0.0.1:1" in str(told.value)


class _Beating:
    """A registered broker that sends heartbeats."""

    def __init__(self, port: int, epoch: int, tls: TlsFiles | None = None) -> None:
        self.lease = Lease(2_000)
        self.tick = LoopTick()
        self.stale = asyncio.Event()
        self.heartbeat = Heartbeat(
            broker_id=BrokerId(4),
            broker_epoch=BrokerEpoch(epoch),
            lease=self.lease,
            tick=self.tick,
            loop=asyncio.get_running_loop(),
            on_update=lambda _: None,
            on_stale=self.stale.set,
        )
        self.threads = HeartbeatThreads(
            self.heartbeat,
            controllers=[(1, "127.0.0.1", port)],
            interval_ms=20,
            tls=tls,
            identity=ClusterIdentity("c"),
        )


async def test_answered_beats_renew_the_lease_and_a_stuck_loop_ends_it(
    controller: MemoryController,
) -> None:
    beating = _Beating(controller.port, await registered(controller))
    beating.tick.start()
    beating.heartbeat.want_fence = False
    beating.heartbeat.image_offset = 1 << 40
    beating.threads.start()
    await until(lambda: beating.lease.until_ms > boottime_ms())
    beating.tick.stop()  # as if the loop stood still
    beating.tick.at_ms = monotonic_ms() - LOOP_AGE_MAX_MS - 1
    # A beat that was under way may still renew it.
    await until(lambda: beating.lease.until_ms < boottime_ms())
    beating.threads.stop()


async def test_a_stale_broker_is_told_once_it_asks(controller: MemoryController) -> None:
    beating = _Beating(controller.port, await registered(controller) - 1)
    beating.tick.start()
    beating.threads.start()
    async with asyncio.timeout(60):
        await beating.stale.wait()
    assert beating.lease.until_ms == 0
    beating.threads.stop()
    beating.tick.stop()


async def test_a_broker_that_was_unregistered_is_told_so(controller: MemoryController) -> None:
    """Without that response the broker would send heartbeats for ever and serve no client."""
    epoch = await registered(controller)
    decision = await controller.host.decide(registration.unregister, BrokerId(4))
    assert decision.response.is_good
    beating = _Beating(controller.port, epoch)
    beating.tick.start()
    beating.threads.start()
    async with asyncio.timeout(60):
        await beating.stale.wait()
    assert beating.lease.until_ms == 0
    beating.threads.stop()
    beating.tick.stop()


def _answer(epoch: int, **fields: Any) -> pb.HeartbeatResponse:
    return pb.HeartbeatResponse(is_active=True, controller_epoch=epoch, **fields)


async def test_a_deposed_controllers_answers_count_for_nothing_once_the_new_one_was_heard() -> None:
    """The deposed controller does not know that it was deposed: it would renew leases, let brokers
    stop, or call them stale.
    """
    beating = _Beating(1, epoch=7)
    received = beating.heartbeat.received
    received(ControllerId(2), _answer(5), 1_000)
    until_ms = beating.lease.until_ms
    assert until_ms == 3_000
    await asyncio.sleep(0)  # what was told is told by the loop
    updates: list[HeartbeatUpdate] = []
    beating.heartbeat._on_update = updates.append
    received(ControllerId(1), _answer(4, may_shutdown=True), 2_000)
    received(ControllerId(1), _answer(4, error_code=ErrorCode.BROKER_ID_NOT_REGISTERED), 2_000)
    await asyncio.sleep(0)
    assert beating.lease.until_ms == until_ms
    assert updates == []
    assert not beating.stale.is_set()
    received(ControllerId(1), _answer(6), 2_000)
    assert beating.lease.until_ms == 4_000


class Pulse(pb_grpc.ControllerServiceServicer):
    """A controller that responds to one heartbeat in each stream, and records the certificate of
    the sender.
    """

    def __init__(self) -> None:
        self.serials: list[int] = []

    async def Heartbeat(
        self, request_iterator: AsyncIterator[pb.HeartbeatRequest], context: Any
    ) -> AsyncIterator[pb.HeartbeatResponse]:
        pem = context.auth_context()["x509_pem_cert"][0]
        self.serials.append(x509.load_pem_x509_certificate(pem).serial_number)
        async for message in request_iterator:
            yield pb.HeartbeatResponse(seq=message.seq, is_active=True, is_fenced=False)
            return


async def test_heartbeats_show_a_renewed_certificate_when_they_begin_again(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    ca = authority.create(common_name="test", days=1)
    files = {}
    for name in ("controller-1", "broker-4"):
        certificate, key = authority.issue(name, hosts=["127.0.0.1"], days=1)
        files[name] = TlsFiles(certificate=certificate, key=key, ca=ca)
    pulse = Pulse()
    server = grpc.aio.server()
    pb_grpc.add_ControllerServiceServicer_to_server(pulse, server)
    port = server.add_secure_port(
        "127.0.0.1:0", files["controller-1"].server_credentials(require_client=True)
    )
    await server.start()
    beating = _Beating(port, 1, tls=files["broker-4"])
    beating.tick.start()
    beating.threads.start()
    await until(lambda: bool(pulse.serials))
    authority.renew("broker-4", days=1)
    renewed = x509.load_pem_x509_certificate(files["broker-4"].certificate.read_bytes())
    await until(lambda: renewed.serial_number in pulse.serials)
    beating.threads.stop()
    beating.tick.stop()
    await server.stop(0)


async def test_a_call_without_a_controller_says_what_each_one_said() -> None:
    server, port = await _serve(Standby(active=-1))
    client = ControllerClient([(2, "127.0.0.1", port), (3, "127.0.0.1", 1)], None)
    with pytest.raises(NoController) as failed:
        await client.call("Register", pb.RegisterRequest(), timeout_s=1)
    assert str(failed.value).endswith(
        f"(controller 2 at 127.0.0.1:{port}: not the active controller; "
        "controller 3 at 127.0.0.1:1: Connection refused)"
    )
    await client.close()
    await server.stop(0)
