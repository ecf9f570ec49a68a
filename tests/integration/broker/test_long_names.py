"""Topics with the longest legal name are created, deleted and created again, and other topics are
not affected.
"""

from __future__ import annotations

from pathlib import Path

from odradek_protocol.rpc.v1 import admin_service_pb2, admin_service_pb2_grpc
from tests.integration.broker.broker_cluster import BrokerCluster, batch, record_values

LONGEST = "x" * 249


async def delete(cluster: BrokerCluster, name: str) -> None:
    stub = admin_service_pb2_grpc.AdminServiceStub(cluster.channel(1))
    answer = await stub.DeleteTopics(admin_service_pb2.DeleteTopicsRequest(names=[name]))
    assert answer.topics[0].error_code == 0, answer


async def test_a_topic_with_the_longest_name_comes_and_goes(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=2) as cluster:
        await cluster.create_topic("other", replicas=2, min_insync_replicas="2")
        for life in range(2):
            await cluster.create_topic(LONGEST, replicas=2)
            assert (await cluster.produce(LONGEST, batch([b"%d" % life]))).error_code == 0
            assert record_values(await cluster.read(LONGEST, end=1)) == [life]
            await delete(cluster, LONGEST)
            result = await cluster.produce("other", batch([b"%d" % life]))
            assert result.error_code == 0, "deleting one topic takes no other one away"
        for broker in cluster.brokers.values():
            await broker.kill()
            await broker.start()
        await cluster.until(lambda: len(cluster.partition("other").isr) == 2)
        cluster._channels.clear()
        assert (await cluster.produce("other", batch([b"2"]))).error_code == 0
        assert record_values(await cluster.read("other", end=3)) == [0, 1, 2]
        for broker in cluster.brokers.values():
            assert "offline" not in broker.log_path.read_text()
