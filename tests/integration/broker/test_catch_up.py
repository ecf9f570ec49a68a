"""A broker that returns far behind copies at its configured rate, and other partitions do not
become slower.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from odradek_protocol.rpc.v1 import admin_service_pb2, admin_service_pb2_grpc
from tests.integration.broker.broker_cluster import BrokerCluster, batch

RECORDS = 32_000  # further behind than what changes the lane
VALUE_BYTES = 500
RATE = 2_000_000  # bytes/s
CREDIT_BYTES = 1 << 20
FREE_BYTES = 10_000_000
"""An upper bound of what is not held to the rate: the burst (RATE), the last 2,000 records, the first credit of each
lane, one credit beyond the budget of the throttle, and what the leader sends in the first lane until the follower
leaves it, which takes longer on a busy machine."""
LIVE_S_MAX = 10.0  # an acks=all record of a live partition meanwhile, on any machine; usually 0.1 s


async def throttle(cluster: BrokerCluster, rate: int) -> None:
    """Set the rate of all brokers at run time."""
    request = admin_service_pb2.AlterConfigsRequest()
    resource = request.resources.add(type=admin_service_pb2.CONFIG_RESOURCE_TYPE_BROKER)
    resource.operations.add(name="follower.replication.throttled.rate", value=str(rate))
    stub = admin_service_pb2_grpc.AdminServiceStub(cluster.channel(1))
    response = await stub.AlterConfigs(request)
    assert response.resources[0].error_code == 0, response


@pytest.mark.parametrize("is_set_at_run_time", [False, True])
async def test_a_follower_far_behind_is_held_to_its_rate_and_live_partitions_are_not(
    tmp_path: Path, is_set_at_run_time: bool
) -> None:
    settings = {
        "follower.replication.throttled.rate": 1 if is_set_at_run_time else RATE,
        "replica.credit.bytes": CREDIT_BYTES,
    }
    async with BrokerCluster(tmp_path, brokers=2, settings=settings) as cluster:
        if is_set_at_run_time:
            await throttle(cluster, RATE)
        await cluster.create_topic("old", replicas=2, min_insync_replicas="1")
        leader = cluster.partition("old").leader
        behind = cluster.brokers[3 - leader]
        await behind.terminate()
        await cluster.until(lambda: behind.broker_id not in cluster.partition("old").isr)
        value = bytes(VALUE_BYTES)
        for _ in range(0, RECORDS, 1_000):
            result = await cluster.produce("old", batch([value] * 1_000), via=leader)
            assert result.error_code == 0, result
        began_s = time.monotonic()  # it begins to copy before it says that it serves
        await behind.start()
        await cluster.create_topic("live", replicas=2, via=leader, min_insync_replicas="2")
        slowest_s = 0.0
        while behind.broker_id not in cluster.partition("old").isr:
            sent_s = time.monotonic()
            async with asyncio.timeout(30):
                result = await cluster.produce("live", batch([b"1"]))
            assert result.error_code == 0, result
            slowest_s = max(slowest_s, time.monotonic() - sent_s)
            assert time.monotonic() - began_s < 60, "it does not catch up"
        took_s = time.monotonic() - began_s
        print(
            f"caught up after {took_s:.1f} s, live records took {slowest_s * 1000:.0f} ms at most"
        )
        assert took_s > (RECORDS * VALUE_BYTES - FREE_BYTES) / RATE
        assert slowest_s < LIVE_S_MAX
