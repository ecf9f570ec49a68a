"""Configs that change at run time take effect in the logs: those of a topic, and the cluster's
defaults.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin_pb
from odradek_protocol.rpc.v1 import admin_service_pb2_grpc as admin_grpc
from tests.integration.broker.broker_cluster import READY_TIMEOUT_S, BrokerCluster, batch

TOPIC, BROKER = admin_pb.CONFIG_RESOURCE_TYPE_TOPIC, admin_pb.CONFIG_RESOURCE_TYPE_BROKER


@pytest.mark.parametrize(
    ("kind", "resource", "name"),
    [(TOPIC, "t", "max.message.bytes"), (BROKER, "", "message.max.bytes")],
    ids=["topic", "all brokers"],
)
async def test_a_limit_that_is_set_at_run_time_is_obeyed(
    tmp_path: Path, kind: admin_pb.ConfigResourceType, resource: str, name: str
) -> None:
    async with BrokerCluster(tmp_path, brokers=1) as cluster:
        await cluster.create_topic("t")
        assert (await cluster.produce("t", batch([b"x" * 2000]))).error_code == 0
        operation = admin_pb.AlterConfigsOperation(name=name, value="1000")
        answer = await admin_grpc.AdminServiceStub(cluster.channel(1)).AlterConfigs(
            admin_pb.AlterConfigsRequest(
                resources=[
                    admin_pb.AlterConfigsResource(type=kind, name=resource, operations=[operation])
                ]
            )
        )
        assert answer.resources[0].error_code == 0, answer
        async with asyncio.timeout(READY_TIMEOUT_S):
            while (await cluster.produce("t", batch([b"x" * 2000]))).error_code == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        result = await cluster.produce("t", batch([b"x" * 2000]))
        assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await cluster.produce("t", batch([b"x" * 200]))).error_code == 0
