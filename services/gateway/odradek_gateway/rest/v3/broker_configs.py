"""v3: configs of single brokers, and those of all brokers together (dynamic cluster-wide defaults)."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from odradek.admin.descriptions import ConfigResource, ConfigResourceType, ConfigSource
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.parameters import BrokerId, Cluster
from odradek_gateway.rest.v3.brokers import require_broker
from odradek_gateway.rest.v3.concurrently import ask_for_each
from odradek_gateway.rest.v3.configs import ConfigOwner, add_routes
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster, Names
from odradek_gateway.rest.v3.shapes import BrokerConfigResource, ClusterConfigResource, Collection

router = APIRouter(prefix=PREFIX, tags=["v3 brokers"])


@router.get("/brokers/-/configs", response_model=Collection[BrokerConfigResource], responses=ERRORS)
async def list_configs_of_all(names: InCluster, cluster: Cluster) -> dict[str, Any]:
    """Configs of every live broker."""
    brokers = await cluster.admin.list_brokers()
    owners = [_of_broker(names, broker.broker_id, cluster) for broker in brokers]
    found = await ask_for_each(owners, ConfigOwner.describe_all)
    data = [config for configs in found for config in configs]
    return names.collection("BrokerConfig", data, "brokers", "-", "configs")


async def _broker_in_path(names: InCluster, broker_id: BrokerId, cluster: Cluster) -> ConfigOwner:
    await require_broker(cluster, broker_id)
    return _of_broker(names, broker_id, cluster)


def _of_broker(names: Names, broker_id: int, cluster: ClusterAccess) -> ConfigOwner:
    return ConfigOwner(
        cluster=cluster,
        names=names,
        kind="BrokerConfig",
        resource=ConfigResource(type=ConfigResourceType.BROKER, name=str(broker_id)),
        path=("brokers", broker_id, "configs"),
        named={"broker_id": broker_id},
    )


async def _of_all_together(names: InCluster, cluster: Cluster) -> ConfigOwner:
    return ConfigOwner(
        cluster=cluster,
        names=names,
        kind="ClusterConfig",
        resource=ConfigResource(type=ConfigResourceType.BROKER, name=""),
        path=("broker-configs",),
        named={"config_type": "BROKER"},
        source=ConfigSource.BROKER_DEFAULT,
    )


add_routes(
    router,
    "/brokers/{broker_id}/configs",
    _broker_in_path,
    shape=BrokerConfigResource,
    of="a broker",
)
add_routes(
    router,
    "/broker-configs",
    _of_all_together,
    shape=ClusterConfigResource,
    of="all brokers together, those that were set",
)
