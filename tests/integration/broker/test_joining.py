"""How a broker joins the cluster: it registers, registers again if its logs lost records, and waits
to be unfenced.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from odradek_broker.cluster import membership
from odradek_broker.cluster.controller_client import ControllerClient
from odradek_broker.cluster.heartbeat import Beating, Heartbeat, Lease, LoopTick
from odradek_broker.cluster.heartbeat_threads import HeartbeatThreads
from odradek_broker.cluster.membership import LogEnds, Membership
from odradek_broker.cluster.metadata_feed import MetadataFeed
from odradek_broker.log.directory.loading import LoadReport
from odradek_broker.log.directory.restart_markers import RestartClass
from odradek_broker.replication.disk.disk_pool import DiskPool, disk_threads
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    IncarnationId,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
)
from odradek_protocol.metadata.records import RestartClass as RecordedClass
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_runtime.lifecycle import ProcessRefused
from tests.integration.broker.memory_controller import MemoryController, registered, until


class Rejoining:
    """A broker that registers before its logs are read, and again with the partitions that lost
    records.
    """

    lost = TopicIdPartition(TopicId(bytes([7]) * 16), PartitionIndex(0))

    def __init__(self, controller: MemoryController, *, previous_broker_epoch: int) -> None:
        self.stale: list[ProcessRefused] = []
        self.client = ControllerClient([(1, "127.0.0.1", controller.port)], None)
        self.feed = MetadataFeed(
            broker_id=BrokerId(4),
            controllers=self.client,
            on_change=lambda image, delta: self.member.image_changed(image, delta) or (),
            on_refused=pytest.fail,
        )
        settings: Any = SimpleNamespace(
            node_id=4,
            cluster_id="c",
            rack="",
            host_id_or_name="host",
            controllers=[(1, "127.0.0.1", controller.port)],
            heartbeat_interval_ms=20,
        )
        directory: Any = SimpleNamespace(
            restart_class=RestartClass.CLEAN,
            previous_broker_epoch=BrokerEpoch(previous_broker_epoch),
            directory_id=bytes(16),
            follow_metadata=lambda _: None,
            loss_reported=lambda: None,
        )
        self._loop = asyncio.get_running_loop()
        self._registered = asyncio.Event()
        self.member = Membership(
            settings,
            directory=directory,
            pool=DiskPool(disk_threads(2)),
            controllers=self.client,
            feed=self.feed,
            lease=Lease(2_000),
            tick=LoopTick(),
            logs=cast(LogEnds, None),
            beating=lambda heartbeat: HeartbeatThreads(
                heartbeat,
                controllers=settings.controllers,
                interval_ms=settings.heartbeat_interval_ms,
                tls=None,
                identity=self.client.identity,
            ),
            incarnation=IncarnationId(b"a" * 16),
            on_registered=lambda _epoch: self._registered.set(),
            on_stale=self.stale.append,
        )

    async def join(self) -> None:
        """Join the cluster; losses of the logs become known after the first registration."""
        following = asyncio.create_task(self.feed.run())
        try:
            async with asyncio.timeout(60):
                await self.member.join(self._load, [])
        finally:
            self.member.stop()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await self.client.close()

    def _load(self) -> LoadReport:
        asyncio.run_coroutine_threadsafe(self._registered.wait(), self._loop).result(60)
        return LoadReport(
            partitions=1, scanned_bytes=0, cut_bytes=0, power_loss=(self.lost,), stray=()
        )


async def test_a_clean_broker_that_lost_one_partition_says_so_of_that_one_alone(
    controller: MemoryController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker registers before its logs are opened, and again with their losses.

    Both registrations have restart class CLEAN.
    """
    monkeypatch.setattr(membership, "_EARLY_LOAD_S", 0.0)
    before = await registered(controller)
    broker = Rejoining(controller, previous_broker_epoch=before)
    await broker.join()
    recorded = controller.core.committed.brokers[BrokerId(4)]
    assert recorded.broker_epoch == broker.member.epoch > before + 1
    assert recorded.restart_class == RecordedClass.CLEAN


async def test_a_broker_that_is_not_unfenced_says_what_it_waits_for(
    controller: MemoryController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(membership, "_PATIENCE_S", 0.01)
    member = Rejoining(controller, previous_broker_epoch=-1).member
    member._heartbeat = cast(Heartbeat, SimpleNamespace(want_fence=True))
    member._beating = cast(Beating, SimpleNamespace(beat_now=lambda: None))
    waiting = asyncio.create_task(member.ask_unfenced())
    await until(lambda: len(caplog.records) >= 2)
    assert caplog.records[0].__dict__["odradek_fields"] == {
        "waiting_for": "the active controller to unfence this broker"
    }
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


class FeedFirst(MemoryController):
    """A controller that responds to a registration only after the broker's metadata feed has
    delivered it.
    """

    reader: MetadataFeed | None = None

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterResponse:
        answer = await super().Register(request, context)
        if (reader := self.reader) is not None:
            await until(lambda: reader.image.offset >= answer.broker_epoch)
        return answer


async def test_a_brokers_own_second_registration_is_not_taken_for_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "_EARLY_LOAD_S", 0.0)
    controller = FeedFirst(cluster_id="c")
    await controller.start()
    broker = Rejoining(controller, previous_broker_epoch=await registered(controller))
    controller.reader = broker.feed
    await broker.join()
    await controller.stop()
    assert broker.stale == []
