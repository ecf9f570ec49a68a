"""Controllers return without their metadata: no broker deletes a log, and a log whose topic is
restored is used again.
"""

from __future__ import annotations

from pathlib import Path

from odradek_broker.log.directory.opening import adopt_metadata
from odradek_broker.log.storage import DiskStorage
from tests.integration.broker.broker_cluster import BrokerCluster, batch, record_values
from tests.integration.broker.memory_controller import MemoryController


def names(path: Path, ending: str) -> list[str]:
    return [entry.name for entry in path.iterdir() if entry.name.endswith(ending)]


async def start_with(cluster: BrokerCluster, controller: MemoryController) -> None:
    """Restart the broker with this controller, after an operator has made it adopt the controller's metadata log."""
    broker = cluster.brokers[1]
    await broker.kill()
    adopt_metadata(DiskStorage(), broker.directory, None)
    await cluster.controller.stop()
    await controller.start()
    cluster.controller = controller
    broker._settings["controller.rpc.endpoints"] = controller.endpoint
    cluster._channels.clear()
    await broker.start()


async def test_an_empty_controller_erases_nothing_and_the_topic_may_come_back(
    tmp_path: Path,
) -> None:
    async with BrokerCluster(tmp_path, brokers=1) as cluster:
        await cluster.create_topic("precious")
        for number in range(5):
            assert (await cluster.produce("precious", batch([b"%d" % number]))).error_code == 0
        original = cluster.controller
        directory = cluster.brokers[1].directory
        await start_with(cluster, MemoryController(cluster_id=cluster.cluster_id, seed=8))
        (stray,) = names(directory, "-stray")
        assert not names(directory, "-delete")
        assert "Put logs aside" in cluster.brokers[1].log_path.read_text()
        size_bytes = (directory / stray / f"{0:020d}.log").stat().st_size
        assert size_bytes > 0
        # A namesake is another topic: it takes nothing of the stray's.
        await cluster.create_topic("precious")
        assert (await cluster.produce("precious", batch([b"7"]))).base_offset == 0

        restored = MemoryController(cluster_id=cluster.cluster_id)
        restored.restore(original)
        await start_with(cluster, restored)
        await cluster.until(lambda: cluster.partition("precious").leader == 1)
        await cluster.until(lambda: stray not in names(directory, "-stray"))
        (namesake,) = names(directory, "-stray")
        assert namesake != stray
        assert record_values(await cluster.read("precious", end=5)) == list(range(5))
        assert (await cluster.produce("precious", batch([b"5"]))).base_offset == 5
