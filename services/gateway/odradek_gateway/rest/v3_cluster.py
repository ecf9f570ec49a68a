"""v3: clusters and brokers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request

from odradek.admin.descriptions import ConfigResource, ConfigResourceType
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.errors import RestError
from odradek_gateway.rest.request_bodies import cluster_of
from odradek_gateway.rest.schemas import CollectionV3, Error, ResourceV3
from odradek_gateway.rest.v3_configs import config_resource, find_config
from odradek_gateway.rest.v3_resources import Names, names_of

router = APIRouter(prefix="/v3", tags=["v3 clusters"])
Cluster = Annotated[ClusterAccess, Depends(cluster_of)]
InCluster = Annotated[Names, Depends(names_of)]
BrokerId = Annotated[int, Path(ge=0, le=2**31 - 1)]
ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": Error} for code in (400, 401, 403, 404, 422, 429, 500, 503)
}


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


@router.get("/clusters", response_model=CollectionV3, responses=ERRORS)
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


@router.get("/clusters/{cluster_id}", response_model=ResourceV3, responses=ERRORS)
async def get_cluster(names: InCluster, cluster: Cluster) -> dict[str, Any]:
    """The cluster."""
    described = await cluster.admin.describe_cluster()
    return _cluster(names, described.active_controller_id)


@router.get("/clusters/{cluster_id}/brokers", response_model=CollectionV3, responses=ERRORS)
async def list_brokers(names: InCluster, cluster: Cluster) -> dict[str, Any]:
    """The live brokers."""
    brokers = await cluster.admin.list_brokers()
    return names.collection("Broker", [_broker(names, b) for b in brokers], "brokers")


@router.get(
    "/clusters/{cluster_id}/brokers/{broker_id}", response_model=ResourceV3, responses=ERRORS
)
async def get_broker(names: InCluster, broker_id: BrokerId, cluster: Cluster) -> dict[str, Any]:
    """One broker."""
    for broker in await cluster.admin.list_brokers():
        if broker.broker_id == broker_id:
            return _broker(names, broker)
    raise _no_broker(broker_id)


@router.get(
    "/clusters/{cluster_id}/brokers/{broker_id}/configs",
    response_model=CollectionV3,
    responses=ERRORS,
)
async def list_broker_configs(
    names: InCluster, broker_id: BrokerId, cluster: Cluster
) -> dict[str, Any]:
    """Configs of a broker."""
    await get_broker(names, broker_id, cluster)
    found = await cluster.admin.describe_configs(_resource(broker_id))
    path = ("brokers", broker_id, "configs")
    data = [
        config_resource(names, "BrokerConfig", c, *path, broker_id=broker_id)
        for c in found.values()
    ]
    return names.collection("BrokerConfig", data, *path)


@router.get(
    "/clusters/{cluster_id}/brokers/{broker_id}/configs/{name}",
    response_model=ResourceV3,
    responses=ERRORS,
)
async def get_broker_config(
    names: InCluster, broker_id: BrokerId, name: str, cluster: Cluster
) -> dict[str, Any]:
    """One config of a broker."""
    await get_broker(names, broker_id, cluster)
    found = find_config(await cluster.admin.describe_configs(_resource(broker_id)), name)
    return config_resource(
        names, "BrokerConfig", found, "brokers", broker_id, "configs", broker_id=broker_id
    )


@router.get(
    "/clusters/{cluster_id}/brokers/{broker_id}/partition-replicas",
    response_model=CollectionV3,
    responses=ERRORS,
)
async def list_broker_replicas(
    names: InCluster, broker_id: BrokerId, cluster: Cluster
) -> dict[str, Any]:
    """The replicas that a broker keeps."""
    from odradek_gateway.rest.v3_topics import replica_resource

    await get_broker(names, broker_id, cluster)
    data = [
        replica_resource(names, topic.name, p, broker_id)
        for topic in await cluster.admin.list_topics(include_internal=True)
        for p in topic.partitions
        if broker_id in p.replicas
    ]
    return names.collection("Replica", data, "brokers", broker_id, "partition-replicas")


def _resource(broker_id: int) -> ConfigResource:
    return ConfigResource(type=ConfigResourceType.BROKER, name=str(broker_id))


def _broker(names: Names, broker: Any) -> dict[str, Any]:
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


def _no_broker(broker_id: int) -> RestError:
    return RestError(404, 404, f"there is no broker {broker_id}, or it is not live")
