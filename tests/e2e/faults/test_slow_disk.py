"""A broker with many unsynced bytes stops in a controlled way even if its disk syncs slowly."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.e2e.faults.conftest import Report
from tests.e2e.faults.fragile_disk import FragileDisks

SYNC_MS = 300
PARTITIONS = 40  # with a sync for each, the stop takes longer than controlled.shutdown.timeout.ms
HAND_OVER_S = 5.0
STOP_S_MAX = 60.0


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_stop_with_much_to_sync_takes_its_time_and_is_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    (tmp_path / "workspace").mkdir()
    plan = ClusterPlan(brokers=1, controllers=1, data_dir=tmp_path / "cluster")
    with EmbeddedCluster(plan) as cluster:
        disks = FragileDisks(cluster.data_dir, tmp_path / "workspace")
        disks.plug_in()
        cluster.controllers[1].start()
        with monkeypatch.context() as slow:
            for name, value in disks.environment(sync_ms=SYNC_MS).items():
                slow.setenv(name, value)
            cluster.brokers[1].start()
        await asyncio.to_thread(cluster.wait_ready)
        async with Client(cluster.bootstrap) as client:
            await client.admin.create_topic("t", partitions=PARTITIONS, replication_factor=1)
            async with client.producer() as producer:
                for partition in range(PARTITIONS):
                    await producer.send("t", b"unsynced", partition=partition)
        began_s = time.monotonic()
        assert await asyncio.to_thread(cluster.brokers[1].terminate, STOP_S_MAX)
        stop_s = time.monotonic() - began_s
        assert (cluster.broker_data_dir(1) / "clean").exists()
        cluster.brokers[1].start()
        await asyncio.to_thread(cluster.brokers[1].wait_ready, STOP_S_MAX)
        log = cluster.brokers[1].log_path.read_text()
    report(stop_s=round(stop_s, 1), syncs_ms=SYNC_MS, partitions=PARTITIONS)
    assert stop_s > HAND_OVER_S, "the syncs were too fast, so the test proves nothing"
    assert '"restart_class":"clean"' in log
