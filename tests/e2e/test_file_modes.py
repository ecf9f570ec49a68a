"""Other accounts of the machine cannot read the files of services: the test checks the modes of all
files below their directories.
"""

from __future__ import annotations

import stat
from pathlib import Path

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster


async def test_files_of_services_are_closed_to_other_accounts(tmp_path: Path) -> None:
    plan = ClusterPlan(brokers=1, controllers=1, gateways=0, data_dir=tmp_path / "data")
    with EmbeddedCluster(plan) as cluster:
        cluster.start()
        cluster.wait_ready()
        async with Client(cluster.bootstrap) as client:
            await client.admin.create_topic("t", partitions=1, replication_factor=1)
            async with client.producer(acks="all") as producer:
                await producer.send_and_wait("t", b"secret")
        modes = {
            str(path): stat.S_IMODE(path.stat().st_mode)
            for folder in ("broker-1", "controller-1")
            for path in (tmp_path / "data" / folder).rglob("*")
            if path.is_file()
        }
    assert any("/t-0/" in path and path.endswith(".log") for path in modes)
    assert [path for path, mode in modes.items() if mode & 0o007] == []
    assert [p for p, mode in modes.items() if "/controller-" in p and mode & 0o077] == []
