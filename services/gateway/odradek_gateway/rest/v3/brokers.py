"""v3: the live brokers, and the replicas that they keep."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from odradek.cluster.metadata_cache import Broker
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.errors import RestError
from odradek_gateway.rest.parameters import BrokerId, Cluster
from odradek_gateway.rest.v3.partitions import replica_resource
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster, Names
from odradek_gateway.rest.v3.shapes import BrokerResource, Collection, ReplicaResource

router = APIRouter(prefix=PREFIX, tags=["v3 brokers"])


@router.get("/brokers", response_model=Collection[BrokerResource], responses=ERRORS)
async def list_brokers(names: InCluster, cluster: Cluster) -> dict[str, Any]:
    """The live brokers."""
    brokers = await cluster.admin.list_brokers()
    return names.collection("Broker", [_broker(names, b) for b in brokers], "brokers")


@router.get("/brokers/{broker_id}", response_model=BrokerResource, responses=ERRORS)
async def get_broker(names: InCluster, broker_id: BrokerId, cluster: Cluster) -> dict[str, Any]:
    """One broker."""
    return _broker(names, await require_broker(cluster, broker_id))


@router.get(
    "/brokers/{broker_id}/partition-replicas",
    response_model=Collection[ReplicaResource],
    responses=ERRORS,
)
async def list_broker_replicas(
    names: InCluster, broker_id: BrokerId, cluster: Cluster
) -> dict[str, Any]:
    """The replicas that a broker keeps."""
    await require_broker(cluster, broker_id)
    data = [
        replica_resource(names, topic.name, p, broker_id)
        for topic in await cluster.admin.list_topics(include_internal=True)
        for p in topic.partitions
        if broker_id in p.replicas
    ]
    return names.collection("Replica", data, "brokers", broker_id, "partition-replicas")


async def require_broker(cluster: ClusterAccess, broker_id: int) -> Broker:
    """404 if there is none, or it is not live."""
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
