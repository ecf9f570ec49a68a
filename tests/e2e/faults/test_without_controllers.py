"""While no controller is available, producers with acks=all continue to write, and requests that
need a valid broker lease are refused.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.builder import BatchBuilder
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1.broker_service_pb2_grpc import BrokerServiceStub
from tests.e2e.faults.cluster_faults import leader_of, new_topic, restart, wait_for_full_isr
from tests.e2e.faults.workload import SETTLE_S_MAX, read_all

_POLL_S = 0.1
SETTING = "acks.all.without.controller.enable"


async def produce(endpoint: str, topic: str, acks: int, value: bytes) -> ErrorCode:
    """Produce one record without the SDK, which would retry until the controllers are back; return
    the broker's response.
    """
    builder = BatchBuilder()
    builder.append(None, value)
    request = pb.ProduceRequest(request_id=1, acks=acks, timeout_ms=10_000)
    request.partitions.add(topic=topic, partition=0, records=bytes(builder.build()))
    async with grpc.aio.insecure_channel(endpoint) as channel, asyncio.timeout(SETTLE_S_MAX):
        call = BrokerServiceStub(channel).Produce()
        await call.write(request)
        response = await call.read()
        assert isinstance(response, pb.ProduceResponse), response
        return ErrorCode(response.partitions[0].error_code)


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_acks_all_is_answered_without_any_controller_where_the_setting_says_so(
    tmp_path: Path, is_enabled: bool
) -> None:
    settings = (f"{SETTING}={str(is_enabled).lower()}",)
    plan = ClusterPlan(brokers=3, controllers=1, data_dir=tmp_path / "cluster", settings=settings)
    with EmbeddedCluster(plan) as cluster:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        async with Client(cluster.bootstrap) as client:
            shared = await new_topic(client, partitions=1)
            alone = await new_topic(client, partitions=1, replicas=1)
            for topic in (shared, alone):
                await wait_for_full_isr(client, topic)
            endpoints = cluster.bootstrap.split(",")
            leader = endpoints[await leader_of(client, shared) - 1]
            only = endpoints[await leader_of(client, alone) - 1]
            cluster.controllers[1].kill()
            async with asyncio.timeout(SETTLE_S_MAX):
                while await produce(leader, shared, 1, b"acks=1") is ErrorCode.NONE:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
            wanted = ErrorCode.NONE if is_enabled else ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert await produce(leader, shared, -1, b"acks=all") is wanted
            async with asyncio.timeout(SETTLE_S_MAX):
                while await produce(only, alone, -1, b"alone") is ErrorCode.NONE:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
            await restart([cluster.controllers[1]])
            await wait_for_full_isr(client, shared)
            values = [value for _, value in await read_all(client, shared, 1)]
            assert b"acks=all" in values
