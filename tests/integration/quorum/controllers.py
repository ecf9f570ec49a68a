"""Runs controllers inside the test process: real quorum, real files, real gRPC on free ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from odradek.embedded import free_ports
from odradek_metadata_quorum.process import QuorumProcess
from odradek_metadata_quorum.settings import ENV_PREFIX, QuorumProcessSettings
from odradek_protocol.metadata.codec import decode_batch
from odradek_protocol.metadata.features import OWN_MAXIMA
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.snapshot import SnapshotReader
from odradek_protocol.records.hashes import crc32c
from odradek_protocol.rpc.v1 import admin_service_pb2_grpc, controller_service_pb2_grpc
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_runtime.lifecycle import StopRequest
from odradek_runtime.settings import load_settings

CLUSTER_ID = "integration"
WAIT_S = 60.0  # so high that a slow machine does not exceed it


async def until(condition: Callable[[], Any], what: str = "") -> None:
    """Wait for a condition, which may be a coroutine function, up to a bound."""
    async with asyncio.timeout(WAIT_S):
        while True:
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return
            await asyncio.sleep(0.01)
    raise AssertionError(what)


@dataclass
class Controllers:
    """A quorum of controllers, each a `QuorumProcess` with its own directory."""

    directory: Path
    count: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    per_node: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.raft_ports = free_ports(self.count)
        self.rpc_ports = free_ports(self.count)
        self.processes: dict[int, QuorumProcess] = {}
        self.stops: dict[int, StopRequest] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.channels: dict[int, grpc.aio.Channel] = {}

    def build(self, node: int, **more: Any) -> QuorumProcess:
        """Return a controller process with its settings, which is not started."""
        values = {
            "node.id": node,
            "cluster.id": CLUSTER_ID,
            "log.dirs": self.directory / str(node),
            "controller.quorum.voters": self._endpoints(self.raft_ports),
            "controller.rpc.endpoints": self._endpoints(self.rpc_ports),
            "listeners": f"RAFT://127.0.0.1:{self.raft_ports[node]},"
            f"CONTROLLER://127.0.0.1:{self.rpc_ports[node]}",
            "storage.format.if.empty": "true",
            "broker.session.timeout.ms": 60_000,  # brokers in these tests send heartbeats when a test says so
            **self.settings,
            **self.per_node.get(node, {}),
            **more,
        }
        settings = load_settings(
            QuorumProcessSettings,
            env={},
            env_prefix=ENV_PREFIX,
            assignments=[f"{name}={value}" for name, value in values.items()],
        )
        return QuorumProcess(settings, insecure=False)

    def _endpoints(self, ports: Iterable[int]) -> str:
        return ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(ports))

    def start(self, node: int, **more: Any) -> None:
        self.processes[node] = self.build(node, **more)
        self.stops[node] = stop = StopRequest()
        self.tasks[node] = asyncio.create_task(self.processes[node].run(stop))

    async def stop(self, node: int) -> None:
        self.stops[node].set("test")
        async with asyncio.timeout(WAIT_S):
            await self.tasks.pop(node)
        del self.processes[node]

    async def active(self) -> int:
        """Wait for an active controller, and return its node id."""
        found: list[int] = []

        def look() -> bool:
            self._check_tasks()
            found[:] = [
                node
                for node, process in self.processes.items()
                if hasattr(process, "_host") and process._host.controller.is_active
            ]
            return len(found) == 1

        await until(look, "an active controller")
        return found[0]

    async def all_ready(self) -> None:
        """Wait until all controllers are ready.

        New controllers must all have heard of each other once; after that a majority is enough.
        """

        def look() -> bool:
            self._check_tasks()
            return all(
                hasattr(process, "_is_serving") and not process._why_not_ready()
                for process in self.processes.values()
            )

        await until(look, "controllers that are ready")

    def _check_tasks(self) -> None:
        for task in self.tasks.values():
            if task.done():
                task.result()

    def controller(self, node: int) -> controller_service_pb2_grpc.ControllerServiceAsyncStub:
        return controller_service_pb2_grpc.ControllerServiceStub(self.channel(node))  # type: ignore[return-value]

    def admin(self, node: int) -> admin_service_pb2_grpc.AdminServiceAsyncStub:
        return admin_service_pb2_grpc.AdminServiceStub(self.channel(node))  # type: ignore[return-value]

    def image(self, node: int) -> MetadataImage:
        return self.processes[node]._host.controller.committed

    def channel(self, node: int) -> grpc.aio.Channel:
        if node not in self.channels:
            self.channels[node] = grpc.aio.insecure_channel(
                f"127.0.0.1:{self.rpc_ports[node]}",
                options=[
                    ("grpc.use_local_subchannel_pool", 1),
                    ("grpc.initial_reconnect_backoff_ms", 50),
                    ("grpc.min_reconnect_backoff_ms", 50),
                    ("grpc.max_reconnect_backoff_ms", 200),
                ],
            )
        return self.channels[node]

    async def close(self) -> None:
        for channel in self.channels.values():
            await channel.close()
        for node in list(self.tasks):
            self.stops[node].set("test")
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*self.tasks.values())


@asynccontextmanager
async def controllers(
    directory: Path, count: int = 1, **settings: Any
) -> AsyncIterator[Controllers]:
    """Run controllers. `settings` are named with _ in place of the dots."""
    found = Controllers(
        directory, count, {name.replace("_", "."): value for name, value in settings.items()}
    )
    for node in range(count):
        found.start(node)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(found.close)
        await found.all_ready()
        yield found


def register_request(broker_id: int = 1, life: int = 1, **more: Any) -> pb.RegisterRequest:
    """Return a broker's registration."""
    return pb.RegisterRequest(
        **{
            "cluster_id": CLUSTER_ID,
            "broker_id": broker_id,
            "incarnation_id": life.to_bytes(16, "big"),
            "directory_ids": [broker_id.to_bytes(16, "big")],
            "restart_class": pb.RESTART_CLASS_PROCESS,
            "previous_broker_epoch": -1,
            "features": dict(OWN_MAXIMA),
            **more,
        }
    )


class Heart:
    """A broker's heartbeat stream."""

    def __init__(self, found: Controllers, node: int, broker_id: int, broker_epoch: int) -> None:
        self._call = found.controller(node).Heartbeat()
        self._broker_id, self._broker_epoch, self._seq = broker_id, broker_epoch, 0

    async def beat(self, image_offset: int = 1 << 40, **wishes: Any) -> pb.HeartbeatResponse:
        self._seq += 1
        await self._call.write(
            pb.HeartbeatRequest(
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch,
                seq=self._seq,
                image_offset=image_offset,
                **wishes,
            )
        )
        async with asyncio.timeout(WAIT_S):
            answer = await self._call.read()
        assert isinstance(answer, pb.HeartbeatResponse), "the stream ended"
        assert answer.seq == self._seq
        return answer

    async def until_unfenced(self) -> None:
        async def look() -> bool:
            return not (await self.beat()).is_fenced

        await until(look, "unfenced")

    def close(self) -> None:
        self._call.cancel()


async def start_broker(found: Controllers, broker_id: int = 1) -> Heart:
    """Register a broker at the active controller and wait until it is unfenced."""
    node = await found.active()
    answer = await found.controller(node).Register(register_request(broker_id))
    assert answer.error_code == 0, answer
    heart = Heart(found, node, broker_id, answer.broker_epoch)
    await heart.until_unfenced()
    return heart


class Follower:
    """Builds metadata from a metadata feed, as a broker does."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.snapshots = 0
        self.offsets: list[int] = []

    async def follow(
        self, stub: controller_service_pb2_grpc.ControllerServiceAsyncStub, to_offset: int
    ) -> None:
        """Read until the metadata have reached `to_offset`."""
        call = stub.MetadataFeed(
            pb.MetadataFeedRequest(
                broker_id=1, from_offset=self.image.offset + 1, last_epoch=self.image.epoch
            )
        )
        pieces: list[bytes] = []
        async with asyncio.timeout(WAIT_S):
            while self.image.offset < to_offset:
                message = await call.read()
                assert isinstance(message, pb.MetadataFeedResponse), "the feed ended"
                if message.HasField("snapshot"):
                    self._snapshot(message.snapshot, pieces)
                else:
                    self._batches(message.batches)
        call.cancel()

    def _snapshot(self, chunk: pb.MetadataSnapshotChunk, pieces: list[bytes]) -> None:
        assert chunk.position == sum(map(len, pieces))
        pieces.append(chunk.data)
        if chunk.is_last:
            assert crc32c(b"".join(pieces)) == chunk.crc32c
            reader = SnapshotReader()
            for piece in pieces:
                reader.add(piece)
            self.image = reader.finish()
            assert self.image.offset == chunk.offset
            self.snapshots += 1

    def _batches(self, message: pb.MetadataBatches) -> None:
        for entry in message.batches:
            assert entry.offset > self.image.offset, "the feed never goes back"
            self.offsets.append(entry.offset)
            if entry.payload:
                for record in decode_batch(entry.payload).records:
                    self.image.replay(entry.offset, entry.controller_epoch, record)  # type: ignore[arg-type]
            self.image.advance(entry.offset, entry.controller_epoch)  # type: ignore[arg-type]
