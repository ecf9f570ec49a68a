"""The dev overlay runs on one node with 2 processors and 4 GiB, within a resource quota of the same size:
no pod restarts, and the first record is soon acknowledged.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import Cluster, wait_until
from tests.e2e.kubernetes.conftest import Report
from tests.e2e.kubernetes.installation import Installation, client_pod
from tests.unit.kubernetes.rendered import K8S, ROOT

MEMORY_BYTES = 4 << 30
FIRST_RECORD_S_MAX = 90.0
WAIT_S_MAX = 300.0
QUOTA = {
    "requests.cpu": "2",
    "requests.memory": "4Gi",
    "limits.memory": "4Gi",
    "requests.ephemeral-storage": "2Gi",
    "limits.ephemeral-storage": "8Gi",
}
FIRST_RECORD = """
import asyncio, sys, time
from odradek import Client, TlsOptions
tls = TlsOptions(ca="/etc/odradek-tls/ca.crt", cert="/etc/odradek-tls/tls.crt", key="/etc/odradek-tls/tls.key")
async def once():
    async with Client("bootstrap:9090", tls=tls) as client:
        async with client.producer(acks="all") as producer:
            place = await producer.send_and_wait("hello", b"first")
        async with client.consumer() as consumer:
            consumer.assign([("hello", place.partition)])
            consumer.seek_to_beginning()
            (record, *_) = await consumer.getmany(timeout_ms=30_000)
            print("first record:", record.value, time.time(), flush=True)
while True:
    try:
        asyncio.run(asyncio.wait_for(once(), 60))
        break
    except Exception as error:
        print(type(error).__name__, error, file=sys.stderr, flush=True)
        time.sleep(0.5)
"""


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("installer", ["kubectl", "helm"])
def test_the_first_record_comes_soon_on_a_small_node(
    built_programs: Path, image: Path, tmp_path: Path, report: Report, installer: str
) -> None:
    with Cluster(
        tmp_path, built_programs, [image], nodes=1, node_memory_bytes=MEMORY_BYTES
    ) as cluster:
        installation = Installation(cluster)
        began_s = time.time()
        if installer == "kubectl":
            installation.apply(str(K8S), quota=QUOTA)
        else:
            installation.install_chart(built_programs / "helm", ROOT / "deploy" / "helm")
        client = client_pod(
            "first-record",
            ["python", "-c", FIRST_RECORD],
            namespace="odradek",
            secret="odradek-client-tls",
        )
        installation.kubectl("apply", "-f", "-", stdin=json.dumps(client))
        logs = lambda: cluster.kubectl("--namespace=odradek", "logs", "first-record", check=False)  # noqa: E731
        wait_until(lambda: "first record:" in logs(), "a record was written and read", WAIT_S_MAX)
        took_s = round(float(logs().splitlines()[-1].split()[-1]) - began_s, 1)
        report(
            installer=installer,
            first_record_s=took_s,
            bar_s=FIRST_RECORD_S_MAX,
            processors=os.cpu_count(),
        )
        installation.wait_installed()
        assert installation.restarts() == {}
        assert took_s <= FIRST_RECORD_S_MAX
