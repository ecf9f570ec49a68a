"""Three brokers and a failed leader: what happens to acknowledged records, and how long no record
can be written.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc.aio

from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from tests.integration.broker.broker_cluster import (
    READY_TIMEOUT_S,
    BrokerCluster,
    batch,
    produce_request,
    record_values,
)

GAP_S_MAX = 15.0  # so high that a slow machine does not exceed it; usually at most 1 s
STOP_S_MAX = 10.0


class SteadyProducer:
    """Sends numbered records with acks=all to the present leader, one after the other."""

    def __init__(self, cluster: BrokerCluster, topic: str) -> None:
        self.acked: list[int] = []
        self.longest_gap_s = 0.0
        self._cluster = cluster
        self._topic = topic
        self._last_ack = time.monotonic()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while True:
            if await self._send(number):
                now = time.monotonic()
                self.longest_gap_s = max(self.longest_gap_s, now - self._last_ack)
                self._last_ack = now
                self.acked.append(number)
            number += 1
            await asyncio.sleep(0.005)

    async def _send(self, number: int) -> bool:
        leader = self._cluster.partition(self._topic).leader
        if leader < 0:
            return False
        try:
            async with asyncio.timeout(1):
                call = self._cluster.broker_stub(leader).Produce()
                records = batch([str(number).encode()])
                await call.write(produce_request(self._topic, records))
                answer = await call.read()
                call.cancel()
        except (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
            return False
        return answer is not grpc.aio.EOF and answer.partitions[0].error_code == 0

    async def until_acked(self, more: int) -> None:
        """Wait until this many more records are acknowledged."""
        wanted = len(self.acked) + more
        async with asyncio.timeout(READY_TIMEOUT_S):
            while len(self.acked) < wanted:  # noqa: ASYNC110  # bounded by the timeout
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def _values(cluster: BrokerCluster, topic: str) -> list[int]:
    end = await _end(cluster, topic)
    data = await cluster.read(topic, end=end)
    return record_values(data)


async def _end(cluster: BrokerCluster, topic: str) -> int:
    async with asyncio.timeout(READY_TIMEOUT_S):
        while True:
            leader = cluster.partition(topic).leader
            answer = await cluster.broker_stub(leader).ListOffsets(
                pb.ListOffsetsRequest(
                    partitions=[
                        pb.ListOffsetsPartition(
                            topic=topic, timestamp_ms=-1, current_leader_epoch=-1
                        )
                    ]
                )
            )
            result = answer.partitions[0]
            if result.error_code == 0:
                return int(result.offset)
            assert ErrorCode(result.error_code).retriable, result
            await asyncio.sleep(0.05)


async def test_acknowledged_records_survive_the_kill_of_their_leader(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=3) as cluster:
        await cluster.create_topic("t", replicas=3, min_insync_replicas="2")
        producer = SteadyProducer(cluster, "t")
        await producer.until_acked(30)
        first = cluster.partition("t")
        await cluster.brokers[first.leader].kill()
        await cluster.until(lambda: cluster.partition("t").leader not in (-1, first.leader))
        await producer.until_acked(30)
        second = cluster.partition("t")
        assert second.leader_epoch > first.leader_epoch
        assert first.leader not in second.isr
        await cluster.brokers[first.leader].start()
        await cluster.until(lambda: first.leader in cluster.partition("t").isr)
        await producer.until_acked(30)
        await producer.stop()
        print(f"longest gap between acknowledgements: {producer.longest_gap_s:.3f} s")
        assert producer.longest_gap_s < GAP_S_MAX
        found = await _values(cluster, "t")
        assert set(producer.acked) <= set(found)
        assert found == sorted(found)


async def test_a_controlled_shutdown_hands_leadership_over_without_a_gap(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=3) as cluster:
        await cluster.create_topic("t", replicas=3, min_insync_replicas="2")
        producer = SteadyProducer(cluster, "t")
        await producer.until_acked(20)
        leader = cluster.partition("t").leader
        began = time.monotonic()
        assert await cluster.brokers[leader].terminate() == 0
        stopped_s = time.monotonic() - began
        await producer.until_acked(20)
        assert cluster.partition("t").leader != leader
        await cluster.brokers[leader].start()
        await cluster.until(lambda: leader in cluster.partition("t").isr)
        await producer.stop()
        print(f"stopped in {stopped_s:.3f} s, longest gap {producer.longest_gap_s:.3f} s")
        assert stopped_s < STOP_S_MAX
        assert producer.longest_gap_s < GAP_S_MAX
        assert set(producer.acked) <= set(await _values(cluster, "t"))


async def test_replicas_are_identical_after_kills(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=3) as cluster:
        await cluster.create_topic("t", replicas=3, min_insync_replicas="2")
        producer = SteadyProducer(cluster, "t")
        for _ in range(3):
            await producer.until_acked(20)
            victim = cluster.partition("t").leader
            await cluster.brokers[victim].kill()
            await producer.until_acked(20)
            await cluster.brokers[victim].start()
            await cluster.until(lambda: len(cluster.partition("t").isr) == 3)
        await producer.stop()
        # The last call may have been cancelled while its record was on its way to the followers. A later record that
        # all replicas have acknowledged is behind it in each of them.
        await cluster.until(lambda: len(cluster.partition("t").isr) == 3)
        assert (await cluster.produce("t", batch([b"1000000"]))).error_code == 0
        end = await _end(cluster, "t")
        found = await _values(cluster, "t")
        assert set(producer.acked) <= set(found)
        for broker in cluster.brokers.values():
            assert await broker.terminate() == 0
        logs = [
            b"".join(path.read_bytes() for path in sorted((broker.directory / "t-0").glob("*.log")))
            for broker in cluster.brokers.values()
        ]
        assert end > 0
        assert logs[0] == logs[1] == logs[2]
