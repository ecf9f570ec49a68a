"""The v3 routes of the gateway's cluster, its live brokers, and the replicas of a broker."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from odradek.admin.descriptions import ClusterDescription
from odradek.cluster.metadata_cache import Broker
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import RestError
from odradek_gateway.rest.requests import BrokerId, Cluster
from odradek_gateway.rest.v3.partitions import replica_resource
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster, Names
from odradek_gateway.rest.v3.shapes import (
    BrokerResource,
    ClusterResource,
    Collection,
    ReplicaResource,
)

router = APIRouter()
_CLUSTERS: Final = "v3 clusters"
_BROKERS: Final = "v3 brokers"


@router.get(
    "/v3/clusters", tags=[_CLUSTERS], response_model=Collection[ClusterResource], responses=ERRORS
)
async def list_clusters(request: Request, cluster: Cluster) -> dict[str, Any]:
    """List the clusters. The list has one entry, the cluster to which this gateway is connected."""
    names = Names(request, await cluster.cluster_id())
    base = f"{str(request.base_url).rstrip('/')}/v3/clusters"
    described = await cluster.admin.describe_cluster()
    return {
        "kind": "KafkaClusterList",
        "metadata": {"self": base, "next": None},
        "data": [cluster_resource(names, described)],
    }


@router.get(PREFIX, tags=[_CLUSTERS], response_model=ClusterResource, responses=ERRORS)
async def get_cluster(names: InCluster, cluster: Cluster) -> dict[str, Any]:
    """Return the cluster."""
    described = await cluster.admin.describe_cluster()
    return cluster_resource(names, described)


def cluster_resource(names: Names, described: ClusterDescription) -> dict[str, Any]:
    """Return the resource of the cluster.

    As with Kafka in KRaft mode, the linked controller is a live broker, because controllers have ids of their own and
    are no brokers. Every broker forwards requests to the active controller.
    """
    live = [broker.broker_id for broker in described.brokers if not broker.is_fenced]
    return {
        "kind": "KafkaCluster",
        "metadata": {"self": names.url(), "resource_name": f"crn:///kafka={names.cluster_id}"},
        "cluster_id": names.cluster_id,
        "controller": names.link("brokers", min(live)) if live else None,
        "acls": names.link("acls"),
        "brokers": names.link("brokers"),
        "broker_configs": names.link("broker-configs"),
        "consumer_groups": names.link("consumer-groups"),
        "topics": names.link("topics"),
        "partition_reassignments": names.link("topics", "-", "partitions", "-", "reassignment"),
    }


@router.get(
    f"{PREFIX}/brokers",
    tags=[_BROKERS],
    response_model=Collection[BrokerResource],
    responses=ERRORS,
)
async def list_brokers(names: InCluster, cluster: Cluster) -> Response:
    """List the live brokers."""
    brokers = await cluster.admin.list_brokers()
    return names.collection("Broker", [_broker(names, b) for b in brokers], "brokers")


@router.get(
    f"{PREFIX}/brokers/{{broker_id}}",
    tags=[_BROKERS],
    response_model=BrokerResource,
    responses=ERRORS,
)
async def get_broker(names: InCluster, broker_id: BrokerId, cluster: Cluster) -> dict[str, Any]:
    """Return one broker."""
    return _broker(names, await require_broker(cluster, broker_id))


@router.get(
    f"{PREFIX}/brokers/{{broker_id}}/partition-replicas",
    tags=[_BROKERS],
    response_model=Collection[ReplicaResource],
    responses=ERRORS,
)
async def list_broker_replicas(names: InCluster, broker_id: BrokerId, cluster: Cluster) -> Response:
    """List the replicas that are assigned to a broker."""
    await require_broker(cluster, broker_id)
    topics = await cluster.admin.list_topics(include_internal=True)
    data = (
        replica_resource(names, topic.name, p, broker_id)
        for topic in topics
        for p in topic.partitions
        if broker_id in p.replicas
    )
    return names.collection("Replica", data, "brokers", broker_id, "partition-replicas")


async def require_broker(cluster: ClusterAccess, broker_id: int) -> Broker:
    """Return the live broker with this id. Raises RestError 404 if there is none."""
    for broker in await cluster.admin.list_brokers():
        if broker.broker_id == broker_id:
            return broker
    raise RestError(404, 404, f"there is no broker {broker_id}, or it is not live")


def _broker(names: Names, broker: Broker) -> dict[str, Any]:
    host, _, port = (broker.kafka_endpoint or broker.grpc_endpoint).rpartition(":")
    path = ("brokers", broker.broker_id)
    return {
        "kind": "KafkaBroker",
        "metadata": names.metadata(*path),
        "cluster_id": names.cluster_id,
        "broker_id": broker.broker_id,
        "host": host or None,
        "port": int(port) if port else None,
        "rack": broker.rack or None,
        "configs": names.link(*path, "configs"),
        "partition_replicas": names.link(*path, "partition-replicas"),
    }
