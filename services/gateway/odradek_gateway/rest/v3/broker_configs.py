"""v3: configs of single brokers, and those of all brokers together (dynamic cluster-wide defaults)."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from odradek.admin.descriptions import ConfigResource, ConfigResourceType, ConfigSource, ConfigValue
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.parameters import BrokerId, Cluster, ConfigName
from odradek_gateway.rest.v3 import configs
from odradek_gateway.rest.v3.brokers import require_broker
from odradek_gateway.rest.v3.configs import config_resource, find_config
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster, Names
from odradek_gateway.rest.v3.shapes import BrokerConfigResource, ClusterConfigResource, Collection

router = APIRouter(prefix=PREFIX, tags=["v3 brokers"])
_ALL: Final = ConfigResource(type=ConfigResourceType.BROKER, name="")


# --- of one broker -------------------------------------------------------------------------------


@router.get("/brokers/-/configs", response_model=Collection[BrokerConfigResource], responses=ERRORS)
async def list_configs_of_all(names: InCluster, cluster: Cluster) -> dict[str, Any]:
    """Configs of every live broker."""
    data = [
        _of_broker(names, broker.broker_id, config)
        for broker in await cluster.admin.list_brokers()
        for config in (await cluster.admin.describe_configs(_resource(broker.broker_id))).values()
    ]
    return names.collection("BrokerConfig", data, "brokers", "-", "configs")


@router.get(
    "/brokers/{broker_id}/configs",
    response_model=Collection[BrokerConfigResource],
    responses=ERRORS,
)
async def list_configs(names: InCluster, broker_id: BrokerId, cluster: Cluster) -> dict[str, Any]:
    """Configs of a broker."""
    await require_broker(cluster, broker_id)
    found = await cluster.admin.describe_configs(_resource(broker_id))
    data = [_of_broker(names, broker_id, config) for config in found.values()]
    return names.collection("BrokerConfig", data, "brokers", broker_id, "configs")


@router.post(
    "/brokers/{broker_id}/configs:alter",
    status_code=204,
    responses=ERRORS,
    openapi_extra=configs.ALTER.openapi,
)
async def alter_configs(
    _names: InCluster, broker_id: BrokerId, request: Request, cluster: Cluster
) -> Response:
    """Set and delete several, all or none."""
    wanted = await configs.ALTER.read(request)
    await require_broker(cluster, broker_id)
    await configs.alter(cluster, _resource(broker_id), wanted)
    return Response(status_code=204)


@router.get(
    "/brokers/{broker_id}/configs/{name}", response_model=BrokerConfigResource, responses=ERRORS
)
async def get_config(
    names: InCluster, broker_id: BrokerId, name: ConfigName, cluster: Cluster
) -> dict[str, Any]:
    """One config of a broker."""
    await require_broker(cluster, broker_id)
    found = find_config(await cluster.admin.describe_configs(_resource(broker_id)), name)
    return _of_broker(names, broker_id, found)


@router.put(
    "/brokers/{broker_id}/configs/{name}",
    status_code=204,
    responses=ERRORS,
    openapi_extra=configs.UPDATE.openapi,
)
async def set_config(
    _names: InCluster, broker_id: BrokerId, name: ConfigName, request: Request, cluster: Cluster
) -> Response:
    """Set one."""
    wanted = await configs.UPDATE.read(request)
    await require_broker(cluster, broker_id)
    await configs.set_one(cluster, _resource(broker_id), name, wanted.value)
    return Response(status_code=204)


@router.delete("/brokers/{broker_id}/configs/{name}", status_code=204, responses=ERRORS)
async def reset_config(
    _names: InCluster, broker_id: BrokerId, name: ConfigName, cluster: Cluster
) -> Response:
    """Back to its default."""
    await require_broker(cluster, broker_id)
    await configs.reset_one(cluster, _resource(broker_id), name)
    return Response(status_code=204)


# --- of all brokers together -----------------------------------------------------------------------


@router.get("/broker-configs", response_model=Collection[ClusterConfigResource], responses=ERRORS)
async def list_cluster_configs(names: InCluster, cluster: Cluster) -> dict[str, Any]:
    """Those that were set for all brokers."""
    data = [_of_cluster(names, config) for config in (await _set_for_all(cluster)).values()]
    return names.collection("ClusterConfig", data, "broker-configs")


@router.post(
    "/broker-configs:alter",
    status_code=204,
    responses=ERRORS,
    openapi_extra=configs.ALTER.openapi,
)
async def alter_cluster_configs(_names: InCluster, request: Request, cluster: Cluster) -> Response:
    """Set and delete several for all brokers, all or none."""
    await configs.alter(cluster, _ALL, await configs.ALTER.read(request))
    return Response(status_code=204)


@router.get("/broker-configs/{name}", response_model=ClusterConfigResource, responses=ERRORS)
async def get_cluster_config(
    names: InCluster, name: ConfigName, cluster: Cluster
) -> dict[str, Any]:
    """One that was set for all brokers."""
    return _of_cluster(names, find_config(await _set_for_all(cluster), name))


@router.put(
    "/broker-configs/{name}",
    status_code=204,
    responses=ERRORS,
    openapi_extra=configs.UPDATE.openapi,
)
async def set_cluster_config(
    _names: InCluster, name: ConfigName, request: Request, cluster: Cluster
) -> Response:
    """Set one for all brokers."""
    wanted = await configs.UPDATE.read(request)
    await configs.set_one(cluster, _ALL, name, wanted.value)
    return Response(status_code=204)


@router.delete("/broker-configs/{name}", status_code=204, responses=ERRORS)
async def reset_cluster_config(_names: InCluster, name: ConfigName, cluster: Cluster) -> Response:
    """Back to each broker's own."""
    await configs.reset_one(cluster, _ALL, name)
    return Response(status_code=204)


async def _set_for_all(cluster: ClusterAccess) -> dict[str, ConfigValue]:
    found = await cluster.admin.describe_configs(_ALL)
    return {n: c for n, c in found.items() if c.source == ConfigSource.BROKER_DEFAULT}


def _resource(broker_id: int) -> ConfigResource:
    return ConfigResource(type=ConfigResourceType.BROKER, name=str(broker_id))


def _of_broker(names: Names, broker_id: int, config: ConfigValue) -> dict[str, Any]:
    path = ("brokers", broker_id, "configs")
    return config_resource(names, "BrokerConfig", config, *path, broker_id=broker_id)


def _of_cluster(names: Names, config: ConfigValue) -> dict[str, Any]:
    return config_resource(names, "ClusterConfig", config, "broker-configs", config_type="BROKER")
