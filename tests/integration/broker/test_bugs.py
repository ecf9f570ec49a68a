"""An internal error in one partition of a broker process: another broker leads the partition, and the broker serves
the others.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from odradek_protocol.kafka.error_codes import ErrorCode
from tests.integration.broker.broker_cluster import (
    READY_TIMEOUT_S,
    BrokerCluster,
    batch,
    record_values,
)
from tests.integration.broker.broker_with_a_bug import BUG_MARK


async def test_a_bug_moves_one_leadership_and_nothing_else(tmp_path: Path) -> None:
    module = "tests.integration.broker.broker_with_a_bug"
    async with BrokerCluster(tmp_path, brokers=3, module=module) as cluster:
        await cluster.create_topic("t", partitions=6, replicas=3, min_insync_replicas="2")
        leader = cluster.partition("t").leader
        other = next(i for i in range(1, 6) if cluster.partition("t", i).leader == leader)
        assert (await cluster.produce("t", batch([b"1"]))).error_code == 0
        refused = await cluster.produce("t", batch([BUG_MARK]))
        assert ErrorCode(refused.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        await cluster.until(lambda: cluster.partition("t").leader not in (-1, leader))
        assert leader not in cluster.partition("t").isr
        async with asyncio.timeout(READY_TIMEOUT_S):
            while (await cluster.produce("t", batch([b"2"]))).error_code:
                pass
        assert record_values(await cluster.read("t", end=2)) == [1, 2]
        assert cluster.partition("t", other).leader == leader
        assert (await cluster.produce("t", batch([b"3"]), partition=other)).error_code == 0
        told = cluster.brokers[leader].log_path.read_text()
        assert "Replica failed on an internal error" in told
        assert "AssertionError: t-0 at 1" in told
        assert "data directory is offline" not in told
        assert await cluster.brokers[leader].terminate() == 0
        await cluster.brokers[leader].start()
        await cluster.until(lambda: len(cluster.partition("t").isr) == 3)
        assert record_values(await cluster.read("t", end=2)) == [1, 2]
