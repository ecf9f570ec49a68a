"""v3: configs of topics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from odradek.admin.descriptions import ConfigResource, ConfigResourceType
from odradek_gateway.rest.parameters import Cluster, TopicName
from odradek_gateway.rest.v3.concurrently import ask_for_each
from odradek_gateway.rest.v3.configs import ConfigOwner, add_routes
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster
from odradek_gateway.rest.v3.shapes import Collection, TopicConfigResource

router = APIRouter(prefix=PREFIX, tags=["v3 topics"])


@router.get("/topics/-/configs", response_model=Collection[TopicConfigResource], responses=ERRORS)
async def list_configs_of_all(names: InCluster, cluster: Cluster) -> dict[str, Any]:
    """Configs of every topic."""
    owners = [await _owner(names, topic.name, cluster) for topic in await cluster.topics()]
    found = await ask_for_each(owners, ConfigOwner.describe_all)
    data = [config for configs in found for config in configs]
    return names.collection("TopicConfig", data, "topics", "-", "configs")


async def _owner(names: InCluster, topic: TopicName, cluster: Cluster) -> ConfigOwner:
    return ConfigOwner(
        cluster=cluster,
        names=names,
        kind="TopicConfig",
        resource=ConfigResource(type=ConfigResourceType.TOPIC, name=topic),
        path=("topics", topic, "configs"),
        named={"topic_name": topic},
    )


add_routes(router, "/topics/{topic}/configs", _owner, shape=TopicConfigResource, of="a topic")
