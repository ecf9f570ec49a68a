"""An unauthenticated client opens more connections to a gRPC listener than the broker has file descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from pathlib import Path

import grpc.aio
import pytest

from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import broker_service_pb2_grpc as pb_grpc
from tests.integration.broker.broker_cluster import BrokerCluster, batch
from tests.integration.broker.broker_with_few_descriptors import DESCRIPTORS_MAX
from tests.unit.security.raw_http2 import RawHttp2, raw_http2

CROWD = 700
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted by Linux")


async def kafka_answers(port: int) -> None:
    """Send ApiVersions on a new connection, and wait for the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = struct.pack(">hhih", 18, 0, 1, 2) + b"me"
    writer.write(struct.pack(">i", len(content)) + content)
    async with asyncio.timeout(30):
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        await reader.readexactly(size)
    writer.close()


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def all_closed(crowd: list[RawHttp2]) -> None:
    async with asyncio.timeout(60):
        await asyncio.gather(*(stranger.until_closed() for stranger in crowd))


@pytest.mark.parametrize("listener", ["GRPC", "REPLICATION"])
async def test_a_crowd_of_idle_connections_takes_only_its_part(
    listener: str, tmp_path: Path
) -> None:
    settings = {
        "listeners": "GRPC://127.0.0.1:0,REPLICATION://127.0.0.1:0,KAFKA://127.0.0.1:0",
        "connections.max.idle.ms": 5000,
    }
    module = "tests.integration.broker.broker_with_few_descriptors"
    async with (
        BrokerCluster(tmp_path, module=module, settings=settings) as cluster,
        contextlib.AsyncExitStack() as strangers,
    ):
        broker = cluster.brokers[1]
        await cluster.create_topic("orders", segment_bytes="2000")
        watch = cluster.broker_stub(1).WatchMetadata(pb.WatchMetadataRequest(topics=["orders"]))
        await watch.read()  # an honest client's connection is never without a call
        crowd = [
            await strangers.enter_async_context(raw_http2("127.0.0.1", broker.ports[listener]))
            for _ in range(CROWD)
        ]
        assert broker.process is not None
        assert open_files(broker.process.pid) < DESCRIPTORS_MAX // 2
        for value in range(20):  # segments are rolled
            await kafka_answers(broker.ports["KAFKA"])
            result = await cluster.produce("orders", batch([b"%d" % value]), via=1)
            assert result.error_code == 0
        await all_closed(crowd)
        async with grpc.aio.insecure_channel(broker.endpoint) as channel:
            answer = await pb_grpc.BrokerServiceStub(channel).Metadata(
                pb.MetadataRequest(topics=["orders"]), timeout=30, wait_for_ready=True
            )
        assert answer.topics[0].error_code == 0
        watch.cancel()
        log = broker.log_path.read_text()
        assert "data directory is offline" not in log
        assert "Too many open files" not in log
