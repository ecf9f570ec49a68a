"""The v3 routes of configs: of topics, of single brokers, and of all brokers (cluster-wide defaults). `_add_routes`
adds the same routes for each of the three.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from odradek.admin.descriptions import ConfigResource, ConfigResourceType, ConfigSource, ConfigValue
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import BAD_PAYLOAD, RestError
from odradek_gateway.rest.requests import BrokerId, Cluster, ConfigName, JsonBody, TopicName
from odradek_gateway.rest.v3 import shapes
from odradek_gateway.rest.v3.clusters import require_broker
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster, Names, ask_for_each
from odradek_gateway.rest.v3.shapes import Collection

router = APIRouter(prefix=PREFIX)
_TOPICS: Final = "v3 topics"
_BROKERS: Final = "v3 brokers"
_SOURCES = {
    ConfigSource.UNKNOWN: "UNKNOWN",
    ConfigSource.TOPIC: "DYNAMIC_TOPIC_CONFIG",
    ConfigSource.BROKER: "DYNAMIC_BROKER_CONFIG",
    ConfigSource.BROKER_DEFAULT: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    ConfigSource.STATIC: "STATIC_BROKER_CONFIG",
    ConfigSource.BUILT_IN: "DEFAULT_CONFIG",
    ConfigSource.GROUP: "DYNAMIC_GROUP_CONFIG",
}


class UpdateConfigRequest(msgspec.Struct):
    """The new value of a config."""

    value: str


class ConfigChange(msgspec.Struct):
    """A change of one config. SET needs a value; DELETE resets the config to its default."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    value: str | None = None
    operation: Literal["SET", "DELETE"] = "SET"


_Change = Annotated[
    ConfigChange,
    msgspec.Meta(
        extra_json_schema={
            "anyOf": [
                {"required": ["value"], "properties": {"value": {"type": "string"}}},
                {"required": ["operation"], "properties": {"operation": {"const": "DELETE"}}},
            ]
        }
    ),
]


class AlterConfigsRequest(msgspec.Struct):
    """Changes of several configs. Either all of them are made or none. `validate_only` only checks them."""

    data: Annotated[list[_Change], msgspec.Meta(min_length=1)]
    validate_only: bool = False


_UPDATE: Final = JsonBody(UpdateConfigRequest, example={"value": "86400000"})
_ALTER: Final = JsonBody(
    AlterConfigsRequest, example={"data": [{"name": "retention.ms", "value": "86400000"}]}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOwner:
    """The resource (a topic, a broker, or all brokers) whose configs a request reads or changes."""

    cluster: ClusterAccess
    names: Names
    kind: str  # the `kind` of each config in a response, without the prefix Kafka: TopicConfig
    resource: ConfigResource
    path: tuple[object, ...]  # the path of the list of configs, below that of the cluster
    # Further fields of each config in a response, such as topic_name.
    named: Mapping[str, object] = field(default_factory=dict)
    # Only configs with this source are shown; None: configs of all sources.
    source: ConfigSource | None = None

    async def configs(self) -> dict[str, ConfigValue]:
        """Return the configs of the resource, by name."""
        configs = await self.cluster.admin.describe_configs(self.resource)
        return {n: c for n, c in configs.items() if self.source in (None, c.source)}

    async def describe(self, name: str) -> dict[str, Any]:
        """Return one config as a v3 resource. Raises RestError 404 for an unknown name."""
        return self._described(_find(await self.configs(), name))

    async def describe_all(self) -> Iterator[dict[str, Any]]:
        """Return all configs as v3 resources."""
        return map(self._described, (await self.configs()).values())

    async def alter(
        self, *, changed: Mapping[str, str], reset: Iterable[str] = (), validate_only: bool = False
    ) -> None:
        """Set the configs in `changed`, and reset those in `reset` to their defaults. Either all are changed or none.

        Raises:
            RestError: 404 for an unknown name.
            InvalidConfig: a value is not valid (400).
        """
        reset = list(reset)
        configs = await self.cluster.admin.describe_configs(self.resource)
        for name in (*changed, *reset):
            _find(configs, name)
        await self.cluster.admin.alter_configs(
            self.resource, set=changed, delete=reset, validate_only=validate_only
        )

    def _described(self, config: ConfigValue) -> dict[str, Any]:
        return {
            "kind": f"Kafka{self.kind}",
            "metadata": self.names.metadata(*self.path, config.name),
            "cluster_id": self.names.cluster_id,
            **self.named,
            "name": config.name,
            "value": config.value,
            "is_default": config.source == ConfigSource.BUILT_IN,
            "is_read_only": config.is_read_only,
            "is_sensitive": config.is_sensitive,
            "source": _SOURCES[config.source],
            "synonyms": [],
        }


def _add_routes(
    path: str,
    owner_in_path: Callable[..., Awaitable[ConfigOwner]],
    *,
    shape: type[shapes.ConfigResource],
    of: str,
    tag: str,
) -> None:
    """Add the routes that list, get, set, reset and alter the configs of one kind of resource.

    `owner_in_path` is the dependency that finds the resource in the path; `of` names the resource in openapi.json.
    """
    in_path = Depends(owner_in_path)

    @router.get(
        path,
        response_model=Collection[shape],  # type: ignore[valid-type]  # known when routes are made
        responses=ERRORS,
        tags=[tag],
        description=f"Configs of {of}.",
    )
    async def list_configs(owner: ConfigOwner = in_path) -> Response:
        return owner.names.collection(owner.kind, await owner.describe_all(), *owner.path)

    @router.post(
        f"{path}:alter",
        status_code=204,
        responses=ERRORS,
        tags=[tag],
        openapi_extra=_ALTER.openapi,
        description=f"Set and reset several configs of {of}. Either all are changed or none.",
    )
    async def alter_configs(request: Request, owner: ConfigOwner = in_path) -> Response:
        changes = await _ALTER.read(request)
        changed, reset = _split(changes.data)
        await owner.alter(changed=changed, reset=reset, validate_only=changes.validate_only)
        return Response(status_code=204)

    @router.get(
        f"{path}/{{name}}",
        response_model=shape,
        responses=ERRORS,
        tags=[tag],
        description=f"One config of {of}.",
    )
    async def get_config(name: ConfigName, owner: ConfigOwner = in_path) -> dict[str, Any]:
        return await owner.describe(name)

    @router.put(
        f"{path}/{{name}}",
        status_code=204,
        responses=ERRORS,
        tags=[tag],
        openapi_extra=_UPDATE.openapi,
        description=f"Set one config of {of}.",
    )
    async def set_config(
        name: ConfigName, request: Request, owner: ConfigOwner = in_path
    ) -> Response:
        await owner.alter(changed={name: (await _UPDATE.read(request)).value})
        return Response(status_code=204)

    @router.delete(
        f"{path}/{{name}}",
        status_code=204,
        responses=ERRORS,
        tags=[tag],
        description=f"Reset one config of {of} to its default.",
    )
    async def reset_config(name: ConfigName, owner: ConfigOwner = in_path) -> Response:
        await owner.alter(changed={}, reset=[name])
        return Response(status_code=204)


def _find(configs: Mapping[str, ConfigValue], name: str) -> ConfigValue:
    if name not in configs:
        raise RestError(404, 404, f"there is no config {name}")
    return configs[name]


def _split(items: Iterable[ConfigChange]) -> tuple[dict[str, str], list[str]]:
    changes: dict[str, str] = {}
    reset: list[str] = []
    for item in items:
        if item.name in changes or item.name in reset:
            raise RestError(422, BAD_PAYLOAD, f"{item.name} is changed twice")
        if item.operation == "DELETE":
            reset.append(item.name)
        elif item.value is None:
            raise RestError(
                422, BAD_PAYLOAD, f"{item.name} has no value, but the operation SET needs one"
            )
        else:
            changes[item.name] = item.value
    return changes, reset


@router.get(
    "/topics/-/configs",
    response_model=Collection[shapes.TopicConfigResource],
    responses=ERRORS,
    tags=[_TOPICS],
)
async def list_configs_of_all_topics(names: InCluster, cluster: Cluster) -> Response:
    """List the configs of all topics."""
    owners = (_of_topic(names, topic.name, cluster) for topic in await cluster.topics())
    described = await ask_for_each(owners, ConfigOwner.describe_all)
    return names.collection("TopicConfig", chain.from_iterable(described), "topics", "-", "configs")


async def _topic_in_path(names: InCluster, topic: TopicName, cluster: Cluster) -> ConfigOwner:
    return _of_topic(names, topic, cluster)


def _of_topic(names: Names, topic: str, cluster: ClusterAccess) -> ConfigOwner:
    return ConfigOwner(
        cluster=cluster,
        names=names,
        kind="TopicConfig",
        resource=ConfigResource(type=ConfigResourceType.TOPIC, name=topic),
        path=("topics", topic, "configs"),
        named={"topic_name": topic},
    )


_add_routes(
    "/topics/{topic}/configs",
    _topic_in_path,
    shape=shapes.TopicConfigResource,
    of="a topic",
    tag=_TOPICS,
)


@router.get(
    "/brokers/-/configs",
    response_model=Collection[shapes.BrokerConfigResource],
    responses=ERRORS,
    tags=[_BROKERS],
)
async def list_configs_of_all_brokers(names: InCluster, cluster: Cluster) -> Response:
    """List the configs of all live brokers."""
    brokers = await cluster.admin.list_brokers()
    owners = [_of_broker(names, broker.broker_id, cluster) for broker in brokers]
    described = await ask_for_each(owners, ConfigOwner.describe_all)
    return names.collection(
        "BrokerConfig", chain.from_iterable(described), "brokers", "-", "configs"
    )


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


_add_routes(
    "/brokers/{broker_id}/configs",
    _broker_in_path,
    shape=shapes.BrokerConfigResource,
    of="a broker",
    tag=_BROKERS,
)
_add_routes(
    "/broker-configs",
    _of_all_together,
    shape=shapes.ClusterConfigResource,
    of="all brokers (cluster-wide defaults), as far as they were set",
    tag=_BROKERS,
)
