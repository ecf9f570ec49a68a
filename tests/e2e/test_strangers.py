"""Arbitrary bytes to every port of a cluster with default settings: no code runs, and the connection is closed."""

from __future__ import annotations

import asyncio
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest

from odradek.client import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster

CLOSED_S = 30.0


class Touch:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return (os.system, (f"touch {self.path}",))


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, gateways=1)) as running:
        running.start()
        running.wait_ready()
        yield running


def ports(cluster: EmbeddedCluster) -> dict[str, int]:
    """Return all ports on which the cluster's processes listen, as the operating system reports
    them.
    """
    return {
        f"{child.name}:{one.laddr.port}": one.laddr.port
        for child in cluster.children()
        for one in psutil.Process(child.pid).net_connections(kind="tcp")
        if one.status == psutil.CONN_LISTEN
    }


def payloads(planted: Path) -> list[bytes]:
    """Return pickles as pysyncobj's own transport accepted them, plain and in the frames of each
    protocol of the cluster.
    """
    raw = pickle.dumps(Touch(planted))
    packed = zlib.compress(raw)
    http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    return [
        raw,
        packed,
        *(
            len(one).to_bytes(4, order) + one
            for one in (raw, packed)
            for order in ("little", "big")
        ),
        http2 + b"\0\0\0\4\0\0\0\0\0" + len(raw).to_bytes(3, "big") + b"\0\0\0\0\0\1" + raw,
        b"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: application/python-pickle\r\n"
        + f"Content-Length: {len(raw)}\r\n\r\n".encode()
        + raw,
    ]


def test_the_payload_would_work(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    pickle.loads(pickle.dumps(Touch(planted)))  # a pickle of this test
    assert planted.exists()


async def test_no_port_unpickles_what_a_stranger_sends(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    planted = tmp_path / "planted"
    found = ports(cluster)
    assert len(found) == 8  # controller: 3, broker: 4, gateway: 1

    async def send(name: str, port: int, payload: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(payload)
        try:
            if writer.can_write_eof():
                writer.write_eof()
            async with asyncio.timeout(CLOSED_S):
                while await reader.read(4096):
                    pass
        except ConnectionError:
            pass  # the process reset the connection
        except TimeoutError:
            pytest.fail(f"{name} keeps the connection open")
        finally:
            writer.close()

    await asyncio.gather(
        *(
            send(name, port, payload)
            for name, port in found.items()
            for payload in payloads(planted)
        )
    )
    assert not planted.exists()
    for child in cluster.children():
        assert child.is_running, child.name
    url = cluster.describe()["gateway"]
    async with Client(cluster.bootstrap) as client, httpx.AsyncClient(base_url=url) as http:
        await client.admin.create_topic("t", partitions=1, replication_factor=1)
        async with client.producer() as producer:
            for payload in payloads(planted):
                await producer.send_and_wait(
                    "t", payload, key=payload, headers=[("pickle", payload)]
                )
        assert (await http.get("/topics/t")).status_code == 200
    assert not planted.exists()
