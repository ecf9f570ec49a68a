"""A partition reassignment is listed by REST v3 until it is complete."""

from __future__ import annotations

import asyncio
import time

import httpx

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster

DEADLINE_S = 60.0


def test_a_move_is_told_while_it_lasts() -> None:
    plan = ClusterPlan(brokers=2, controllers=1, gateways=1)
    with EmbeddedCluster(plan) as cluster:
        cluster.start()
        cluster.wait_ready()
        v3 = f"/v3/clusters/{cluster.cluster_id}"
        with httpx.Client(base_url=cluster.describe()["gateway"], timeout=30) as http:
            body = {
                "topic_name": "moves",
                "replicas_assignments": [{"partition_id": 0, "broker_ids": [1]}],
            }
            assert http.post(f"{v3}/topics", json=body).status_code == 201
            cluster.brokers[2].kill()  # the move cannot end without it

            async def move() -> None:
                async with Client(cluster.bootstrap) as client:
                    (told,) = await client.admin.reassign_partitions({("moves", 0): [2]})
                    assert told.error is None, told.error

            asyncio.run(move())
            one = f"{v3}/topics/moves/partitions/0/reassignment"
            deadline_s = time.monotonic() + DEADLINE_S
            while (found := http.get(one)).status_code == 404:
                assert time.monotonic() < deadline_s, "the move was never seen"
            assert found.json()["adding_replicas"] == [2]
            assert found.json()["removing_replicas"] == [1]
            for path in ("moves/partitions/-", "-/partitions/-"):
                data = http.get(f"{v3}/topics/{path}/reassignment").json()["data"]
                assert data == [found.json()]
            cluster.brokers[2].start()
            cluster.brokers[2].wait_ready(DEADLINE_S)
            deadline_s = time.monotonic() + DEADLINE_S
            while http.get(one).status_code != 404:
                assert time.monotonic() < deadline_s, "the move does not end"
            replicas = http.get(f"{v3}/topics/moves/partitions/0/replicas").json()["data"]
            assert [replica["broker_id"] for replica in replicas] == [2]
