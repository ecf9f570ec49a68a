"""DeleteRecords over several brokers: records whose deletion was acknowledged stay deleted, whichever broker leads
next.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin_pb
from odradek_protocol.rpc.v1 import admin_service_pb2_grpc as admin_grpc
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from tests.integration.broker.broker_cluster import READY_TIMEOUT_S, BrokerCluster, batch


async def delete(
    cluster: BrokerCluster, before_offset: int, *, timeout_ms: int, via: int
) -> admin_pb.PartitionResult:
    admin = admin_grpc.AdminServiceStub(cluster.channel(via))
    answer = await admin.DeleteRecords(
        admin_pb.DeleteRecordsRequest(
            partitions=[admin_pb.PartitionOffset(partition={"topic": "t"}, offset=before_offset)],
            timeout_ms=timeout_ms,
        )
    )
    return answer.partitions[0]


async def earliest(cluster: BrokerCluster) -> int:
    """Return the earliest offset, from the partition's leader."""
    async with asyncio.timeout(READY_TIMEOUT_S):
        while True:
            stub = cluster.broker_stub(cluster.partition("t").leader)
            answer = await stub.ListOffsets(
                pb.ListOffsetsRequest(
                    partitions=[
                        pb.ListOffsetsPartition(topic="t", timestamp_ms=-2, current_leader_epoch=-1)
                    ]
                )
            )
            if not answer.partitions[0].error_code:
                return answer.partitions[0].offset


async def test_an_answered_delete_survives_the_leaders_death(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=3) as cluster:
        await cluster.create_topic("t", replicas=3, min_insync_replicas="2")
        for number in range(10):
            assert (await cluster.produce("t", batch([b"%d" % number]))).error_code == 0
        leader = cluster.partition("t").leader
        via = next(b for b in cluster.brokers if b != leader)
        answer = await delete(cluster, 7, timeout_ms=10_000, via=via)
        await cluster.brokers[leader].kill()
        assert (answer.error_code, answer.offset) == (0, 7)
        await cluster.until(lambda: cluster.partition("t").leader not in (-1, leader))
        assert await earliest(cluster) == 7


async def test_a_delete_that_a_live_replica_does_not_hear_of_is_timed_out(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=3) as cluster:
        await cluster.create_topic("t", replicas=3, min_insync_replicas="2")
        assert (await cluster.produce("t", batch([b"1", b"2"]))).error_code == 0
        leader = cluster.partition("t").leader
        process = cluster.brokers[next(b for b in cluster.brokers if b != leader)].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        late = await delete(cluster, 1, timeout_ms=300, via=leader)
        process.send_signal(signal.SIGCONT)
        assert ErrorCode(late.error_code) is ErrorCode.REQUEST_TIMED_OUT
        again = await delete(cluster, 1, timeout_ms=10_000, via=leader)
        assert (again.error_code, again.offset) == (0, 1)
