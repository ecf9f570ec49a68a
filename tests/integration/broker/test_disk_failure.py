"""The disk of a leader fails: it acknowledges no more records, and other brokers take over (rule R11 in
partition/README.md).
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from odradek_protocol.kafka.error_codes import ErrorCode
from tests.integration.broker.broker_cluster import (
    READY_TIMEOUT_S,
    BrokerCluster,
    batch,
    record_values,
)


async def test_a_failed_write_moves_leadership_and_loses_nothing(tmp_path: Path) -> None:
    module = "tests.integration.broker.broker_with_a_bad_disk"
    async with BrokerCluster(tmp_path, brokers=3, module=module) as cluster:
        await cluster.create_topic("t", replicas=3, min_insync_replicas="2")
        leader = cluster.partition("t").leader
        process = cluster.brokers[leader].process
        assert process is not None
        acked: list[int] = []
        for number in range(4):
            result = await cluster.produce("t", batch([b"%d" % number]), via=leader)
            assert result.error_code == 0
            acked.append(number)
        process.send_signal(signal.SIGUSR1)
        number = 4
        async with asyncio.timeout(READY_TIMEOUT_S):
            while cluster.partition("t").leader == leader:
                result = await cluster.produce(
                    "t", batch([b"%d" % number, *([b"0" * 4_000] * 5)]), timeout_ms=1000, via=leader
                )
                if result.error_code == 0:
                    acked.append(number)
                number += 1
        refused = await cluster.produce("t", batch([b"1"]), via=leader)
        assert ErrorCode(refused.error_code) in (
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
        await cluster.until(lambda: cluster.partition("t").leader not in (-1, leader))
        assert leader not in cluster.partition("t").isr
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                after = await cluster.produce("t", batch([b"%d" % number]), timeout_ms=1000)
                if after.error_code == 0:
                    break
        acked.append(number)
        assert len(acked) > 3
        found = record_values(await cluster.read("t", end=after.base_offset + 1))
        assert set(acked) <= set(found)
        assert "The data directory is offline" in cluster.brokers[leader].log_path.read_text()
