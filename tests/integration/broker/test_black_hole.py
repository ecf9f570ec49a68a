"""A link drops all bytes silently, and the cluster recovers soon after the link works again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.integration.broker.broker_cluster import BrokerCluster, BrokerProcess, batch
from tests.integration.broker.flaky_link import FlakyLink

DARKNESS_S = 6.0  # long enough for keepalive to give up
LAG_MS_MAX = 60_000  # the follower stays in the ISR all the time, on a slow machine, too
RECOVERY_S_MAX = 15.0  # so high that a slow machine does not exceed it; usually 2 s


async def test_replication_recovers_after_a_black_hole(tmp_path: Path) -> None:
    link = FlakyLink(("127.0.0.1", 0))
    await link.start()
    async with BrokerCluster(tmp_path, brokers=2) as cluster:
        # Broker 1 is started again behind the link: its followers dial it there.
        first = cluster.brokers[1]
        link.target = ("127.0.0.1", first.ports["REPLICATION"])
        await first.terminate()
        cluster.brokers[1] = behind = BrokerProcess(
            1,
            directory=first.directory,
            cluster_id=cluster.cluster_id,
            controllers=cluster.controller.endpoint,
            settings={
                "advertised.listeners": f"REPLICATION://127.0.0.1:{link.port}",
                "replica.lag.time.max.ms": LAG_MS_MAX,
            },
        )
        behind.ports = first.ports
        await behind.start()
        await cluster.create_topic("t", partitions=2, replicas=2, min_insync_replicas="2")
        index = next(i for i in range(2) if cluster.partition("t", i).leader == 1)
        assert (await cluster.produce("t", batch([b"1"]), partition=index)).error_code == 0
        link.black_hole()
        waiting = asyncio.ensure_future(
            cluster.produce("t", batch([b"2"]), partition=index, timeout_ms=30_000)
        )
        done, _ = await asyncio.wait({waiting}, timeout=DARKNESS_S)
        assert not done, "acknowledged without its follower"
        link.heal()
        began = time.monotonic()
        result = await asyncio.wait_for(waiting, RECOVERY_S_MAX)
        recovered_s = time.monotonic() - began
        print(f"recovered {recovered_s:.2f} s after the link healed")
        assert result.error_code == 0
    await link.stop()
