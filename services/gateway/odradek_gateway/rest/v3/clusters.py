"""v3: clusters, of which there is one behind a gateway."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from odradek_gateway.rest.parameters import Cluster
from odradek_gateway.rest.v3.resources import ERRORS, InCluster, Names
from odradek_gateway.rest.v3.shapes import ClusterResource, Collection

router = APIRouter(prefix="/v3", tags=["v3 clusters"])


@router.get("/clusters", response_model=Collection[ClusterResource], responses=ERRORS)
async def list_clusters(request: Request, cluster: Cluster) -> dict[str, Any]:
    """The one cluster behind this gateway."""
    names = Names(request, await cluster.cluster_id())
    base = f"{str(request.base_url).rstrip('/')}/v3/clusters"
    described = await cluster.admin.describe_cluster()
    return {
        "kind": "KafkaClusterList",
        "metadata": {"self": base, "next": None},
        "data": [_cluster(names, described.active_controller_id)],
    }


@router.get("/clusters/{cluster_id}", response_model=ClusterResource, responses=ERRORS)
async def get_cluster(names: InCluster, cluster: Cluster) -> dict[str, Any]:
    """The cluster."""
    described = await cluster.admin.describe_cluster()
    return _cluster(names, described.active_controller_id)


def _cluster(names: Names, controller_id: int) -> dict[str, Any]:
    return {
        "kind": "KafkaCluster",
        "metadata": {"self": names.url(), "resource_name": f"crn:///kafka={names.cluster_id}"},
        "cluster_id": names.cluster_id,
        "controller": names.link("brokers", controller_id),
        "acls": names.link("acls"),
        "brokers": names.link("brokers"),
        "broker_configs": names.link("broker-configs"),
        "consumer_groups": names.link("consumer-groups"),
        "topics": names.link("topics"),
        "partition_reassignments": names.link("topics", "-", "partitions", "-", "reassignment"),
    }
