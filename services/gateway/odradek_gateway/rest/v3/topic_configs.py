"""v3: configs of topics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from odradek.admin.descriptions import ConfigResource, ConfigResourceType
from odradek_gateway.rest.parameters import Cluster, ConfigName, TopicName
from odradek_gateway.rest.v3 import configs
from odradek_gateway.rest.v3.configs import config_resource, find_config
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster
from odradek_gateway.rest.v3.shapes import Collection, TopicConfigResource

router = APIRouter(prefix=PREFIX, tags=["v3 topics"])


@router.get("/topics/-/configs", response_model=Collection[TopicConfigResource], responses=ERRORS)
async def list_configs_of_all(names: InCluster, cluster: Cluster) -> dict[str, Any]:
    """Configs of every topic."""
    data = [
        config_resource(names, "TopicConfig", c, "topics", t.name, "configs", topic_name=t.name)
        for t in await cluster.topics()
        for c in (await cluster.admin.describe_topic_configs(t.name)).values()
    ]
    return names.collection("TopicConfig", data, "topics", "-", "configs")


@router.get(
    "/topics/{topic}/configs", response_model=Collection[TopicConfigResource], responses=ERRORS
)
async def list_configs(names: InCluster, topic: TopicName, cluster: Cluster) -> dict[str, Any]:
    """Configs of a topic."""
    found = await cluster.admin.describe_topic_configs(topic)
    path = ("topics", topic, "configs")
    data = [
        config_resource(names, "TopicConfig", c, *path, topic_name=topic) for c in found.values()
    ]
    return names.collection("TopicConfig", data, *path)


@router.post(
    "/topics/{topic}/configs:alter",
    status_code=204,
    responses=ERRORS,
    openapi_extra=configs.ALTER.openapi,
)
async def alter_configs(
    _names: InCluster, topic: TopicName, request: Request, cluster: Cluster
) -> Response:
    """Set and delete several, all or none."""
    wanted = await configs.ALTER.read(request)
    await configs.alter(cluster, _resource(topic), wanted)
    return Response(status_code=204)


@router.get("/topics/{topic}/configs/{name}", response_model=TopicConfigResource, responses=ERRORS)
async def get_config(
    names: InCluster, topic: TopicName, name: ConfigName, cluster: Cluster
) -> dict[str, Any]:
    """One config."""
    found = find_config(await cluster.admin.describe_topic_configs(topic), name)
    return config_resource(
        names, "TopicConfig", found, "topics", topic, "configs", topic_name=topic
    )


@router.put(
    "/topics/{topic}/configs/{name}",
    status_code=204,
    responses=ERRORS,
    openapi_extra=configs.UPDATE.openapi,
)
async def set_config(
    _names: InCluster, topic: TopicName, name: ConfigName, request: Request, cluster: Cluster
) -> Response:
    """Set one."""
    wanted = await configs.UPDATE.read(request)
    await configs.set_one(cluster, _resource(topic), name, wanted.value)
    return Response(status_code=204)


@router.delete("/topics/{topic}/configs/{name}", status_code=204, responses=ERRORS)
async def reset_config(
    _names: InCluster, topic: TopicName, name: ConfigName, cluster: Cluster
) -> Response:
    """Back to its default."""
    await configs.reset_one(cluster, _resource(topic), name)
    return Response(status_code=204)


def _resource(topic: str) -> ConfigResource:
    return ConfigResource(type=ConfigResourceType.TOPIC, name=topic)
