"""No RPC blocks a controller's event loop for long without a pause, even with the largest number of items.

The tests send every RPC that brokers forward for their clients, with as many items as brokers
accept. The controller process measures the CPU time of each callback of its event loop
(`watched_broker`). Then they create one topic with as many partitions as one request may create,
and a second test sends a broker's own requests about such a topic. A request that takes too long
has two more attempts, since CPU time grows when another process shares the core's caches.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest

from odradek.embedded import free_ports
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin
from odradek_protocol.rpc.v1 import (
    admin_service_pb2_grpc,
    common_pb2,
    controller_service_pb2_grpc,
)
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_runtime.budget.client_budget import ITEMS_MAX
from tests.integration.broker.test_loop_held import ATTEMPTS_MAX, HELD_S_MAX, _worst
from tests.integration.broker.watched_broker import HELD_FILE, WATCHED_PROGRAM
from tests.integration.quorum.controllers import CLUSTER_ID, register_request
from tests.unit.security.largest_rpcs import LargeRpc, largest_rpcs

READY_S_MAX: Final = 60.0
PROPOSALS_MAX: Final = 500
BROKEN_MAX: Final = 100
PARTITIONS_MAX: Final = 10_000
"""`partitions_per_request_max` of the controller."""


@pytest.mark.parametrize("count", [ITEMS_MAX // 4, pytest.param(ITEMS_MAX, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
async def test_no_rpc_keeps_a_controller_for_long(count: int, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    async with _controller(tmp_path, held) as channel:
        await _unfenced_broker(channel)
        rpcs = [rpc for rpc in largest_rpcs(count) if "AdminService" in rpc.path]
        whole = {"name": "whole", "partition_count": min(count, PARTITIONS_MAX)}
        rpcs.append(
            LargeRpc(
                "CreateTopics one of many partitions",
                "/odradek.v1.AdminService/CreateTopics",
                admin.CreateTopicsRequest(topics=[admin.NewTopic(**whole, replication_factor=1)]),
                admin.CreateTopicsResponse.FromString,
            )
        )
        too_long: list[str] = []
        for rpc in rpcs:
            for attempt in range(ATTEMPTS_MAX):
                before = held.stat().st_size
                outcome = await _asked(channel, rpc)
                worst, collecting, what = _worst(held.read_text()[before:])
                print(
                    f"{worst * 1000:7.1f} ms {collecting * 1000:6.1f} ms gc {outcome:>20}"
                    f"  {rpc.name}  {what[:200]}",
                    flush=True,
                )
                if worst <= HELD_S_MAX:
                    break
                if rpc is rpcs[-1]:
                    rpc.request.topics[0].name = f"again-{attempt}"  # type: ignore[attr-defined]
            else:
                too_long.append(f"{rpc.name}: {worst} s in {what}")
        topics = await admin_service_pb2_grpc.AdminServiceStub(channel).DescribeConfigs(
            admin.DescribeConfigsRequest(
                resources=[
                    admin.ConfigResource(type=admin.CONFIG_RESOURCE_TYPE_TOPIC, name="whole")
                ]
            )
        )
        assert not topics.resources[0].error_code, "the large topic was created"
        assert not too_long, "\n".join(too_long)


@pytest.mark.parametrize("count", [ITEMS_MAX // 4, pytest.param(ITEMS_MAX, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
async def test_no_call_of_a_broker_keeps_a_controller_for_long(count: int, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    async with _controller(tmp_path, held) as channel:
        epochs = {broker: await _unfenced_broker(channel, broker) for broker in (1, 2)}
        created = await admin_service_pb2_grpc.AdminServiceStub(channel).CreateTopics(
            admin.CreateTopicsRequest(
                topics=[admin.NewTopic(name="wide", partition_count=count, replication_factor=2)]
            )
        )
        assert not created.topics[0].error_code, created
        stub: Any = controller_service_pb2_grpc.ControllerServiceStub(channel)
        names = [
            common_pb2.TopicIdPartition(topic_id=created.topics[0].topic_id, partition=index)
            for index in range(count)
        ]
        too_long: list[str] = []
        for name, call in _calls_of_a_broker(stub, epochs, names):
            for _ in range(ATTEMPTS_MAX):
                before = held.stat().st_size
                outcome = await call()
                worst, collecting, what = _worst(held.read_text()[before:])
                print(
                    f"{worst * 1000:7.1f} ms {collecting * 1000:6.1f} ms gc {outcome!s:>20}"
                    f"  {name}  {what[:200]}",
                    flush=True,
                )
                if worst <= HELD_S_MAX:
                    break
            else:
                too_long.append(f"{name}: {worst} s in {what}")
        assert not too_long, "\n".join(too_long)


def _calls_of_a_broker(
    stub: Any, epochs: dict[int, int], names: list[common_pb2.TopicIdPartition]
) -> Iterator[tuple[str, Callable[[], Awaitable[object]]]]:
    """Yield a broker's own calls about its replicas, each with as many partitions as it may
    name.
    """
    broker = {"broker_id": 1, "broker_epoch": epochs[1]}
    alone = [pb.ReplicaWithEpoch(**broker)]

    async def alter() -> object:
        items = [
            pb.AlterPartitionItem(partition=name, leader_epoch=0, partition_epoch=0, isr=alone)
            for name in names[:PROPOSALS_MAX]
        ]
        response = await stub.AlterPartition(pb.AlterPartitionRequest(partitions=items, **broker))
        return response.error_code, Counter(item.error_code for item in response.partitions)

    async def report() -> object:
        ends = [pb.LogEnd(partition=name, last_epoch=0, log_end=7) for name in names]
        return (
            await stub.ReportLogEnds(pb.ReportLogEndsRequest(partitions=ends, **broker))
        ).error_code

    async def beat() -> object:
        request = pb.HeartbeatRequest(
            seq=1, image_offset=1 << 40, broken_partitions=names[:BROKEN_MAX], **broker
        )
        heartbeats = stub.Heartbeat()
        await heartbeats.write(request)
        response = await heartbeats.read()
        heartbeats.cancel()
        return response.error_code

    async def read_all() -> object:
        feed = stub.MetadataFeed(pb.MetadataFeedRequest(broker_id=1))
        offset = -1
        async with asyncio.timeout(READY_S_MAX):
            while True:
                message = await feed.read()
                offset = max([offset, *(entry.offset for entry in message.batches.batches)])
                if offset + 1 == message.batches.end_offset:
                    break
        feed.cancel()
        return offset

    yield "AlterPartition", alter
    yield "ReportLogEnds", report
    yield "Heartbeat", beat
    yield "MetadataFeed", read_all


@asynccontextmanager
async def _controller(directory: Path, held: Path) -> AsyncIterator[grpc.aio.Channel]:
    """Yield a channel to a controller process."""
    raft, rpc = free_ports(2)
    settings: dict[str, Any] = {
        "node.id": 0,
        "cluster.id": CLUSTER_ID,
        "log.dirs": directory / "controller",
        "controller.quorum.voters": f"0@127.0.0.1:{raft}",
        "controller.rpc.endpoints": f"0@127.0.0.1:{rpc}",
        "listeners": f"RAFT://127.0.0.1:{raft},CONTROLLER://127.0.0.1:{rpc}",
        "storage.format.if.empty": "true",
        "broker.session.timeout.ms": 600_000,
    }
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ODRADEK_")}
    with (directory / "controller.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.broker.watched_broker",
            "--exit-with-parent",
            *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={
                **environment,
                HELD_FILE: str(held),
                WATCHED_PROGRAM: "odradek_metadata_quorum",
            },
        )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(READY_S_MAX):
            line = await process.stdout.readline()
        assert line, (directory / "controller.log").read_text()[-4000:]
        assert json.loads(line)
        options = [("grpc.max_receive_message_length", 64 << 20)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{rpc}", options=options) as channel:
            yield channel
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _unfenced_broker(channel: grpc.aio.Channel, broker_id: int = 1) -> int:
    """Register a broker and send heartbeats until it is unfenced; return the broker epoch.

    Its session outlives the test.
    """
    stub: Any = controller_service_pb2_grpc.ControllerServiceStub(channel)
    async with asyncio.timeout(READY_S_MAX):
        while True:
            registered = await stub.Register(register_request(broker_id, life=broker_id))
            if not registered.error_code:
                break
        heartbeats = stub.Heartbeat()
        for seq in range(1, 1000):
            await heartbeats.write(
                pb.HeartbeatRequest(
                    broker_id=broker_id,
                    broker_epoch=registered.broker_epoch,
                    seq=seq,
                    image_offset=1 << 40,
                )
            )
            response = await heartbeats.read()
            if not response.is_fenced:
                break
        return int(registered.broker_epoch)


async def _asked(channel: grpc.aio.Channel, rpc: LargeRpc) -> str:
    call: Any = channel.unary_unary(
        rpc.path,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=rpc.response,
    )
    try:
        await call(rpc.request, timeout=60)
        return "OK"
    except grpc.aio.AioRpcError as error:
        return error.code().name
