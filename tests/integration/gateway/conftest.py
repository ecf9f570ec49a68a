"""Fixtures: one small cluster with a gateway, for all tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from odradek.embedded import ClusterPlan, EmbeddedCluster


@dataclass
class Gateway:
    """An HTTP client of the gateway, and the path of the cluster in REST v3."""

    http: httpx.Client
    cluster: EmbeddedCluster

    @property
    def v3(self) -> str:
        return f"/v3/clusters/{self.cluster.cluster_id}"

    def topic(self, name: str, partitions: int = 2) -> str:
        body = {"topic_name": name, "partitions_count": partitions, "replication_factor": 1}
        assert self.http.post(f"{self.v3}/topics", json=body).status_code == 201
        return name


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, gateways=1)) as cluster:
        cluster.start()
        cluster.wait_ready()
        with httpx.Client(base_url=cluster.describe()["gateway"], timeout=30) as http:
            yield Gateway(http, cluster)
