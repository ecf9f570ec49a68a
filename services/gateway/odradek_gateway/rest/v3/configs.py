"""v3: what configs of topics, of brokers and of the cluster have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from odradek.admin.descriptions import ConfigResource, ConfigSource, ConfigValue
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.errors import BAD_PAYLOAD, RestError
from odradek_gateway.rest.request_bodies import JsonBody
from odradek_gateway.rest.v3.resources import Names

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
    """A value."""

    value: str


class ConfigChange(msgspec.Struct):
    """One change; SET needs a value."""

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
    """Changes, all or none."""

    data: Annotated[list[_Change], msgspec.Meta(min_length=1)]
    validate_only: bool = False


UPDATE = JsonBody(UpdateConfigRequest)
ALTER = JsonBody(AlterConfigsRequest)


def config_resource(
    names: Names, kind: str, config: ConfigValue, *path: object, **owner: object
) -> dict[str, Any]:
    """One config; `owner` names what it belongs to (`topic_name=...`)."""
    return {
        "kind": f"Kafka{kind}",
        "metadata": names.metadata(*path, config.name),
        "cluster_id": names.cluster_id,
        **owner,
        "name": config.name,
        "value": config.value,
        "is_default": config.source == ConfigSource.BUILT_IN,
        "is_read_only": config.is_read_only,
        "is_sensitive": config.is_sensitive,
        "source": _SOURCES[config.source],
        "synonyms": [],
    }


def find_config(configs: Mapping[str, ConfigValue], name: str) -> ConfigValue:
    """404 for a config that there is not."""
    if name not in configs:
        raise RestError(404, 404, f"there is no config {name}")
    return configs[name]


async def set_one(cluster: ClusterAccess, resource: ConfigResource, name: str, value: str) -> None:
    """404 for an unknown name, 400 for a value that is not valid."""
    find_config(await cluster.admin.describe_configs(resource), name)
    await cluster.admin.alter_configs(resource, set={name: value})


async def reset_one(cluster: ClusterAccess, resource: ConfigResource, name: str) -> None:
    """Back to its default; 404 for an unknown name."""
    find_config(await cluster.admin.describe_configs(resource), name)
    await cluster.admin.alter_configs(resource, delete=[name])


async def alter(
    cluster: ClusterAccess, resource: ConfigResource, wanted: AlterConfigsRequest
) -> None:
    """All or none; 404 for an unknown name."""
    changes, gone = _split(wanted.data)
    known = await cluster.admin.describe_configs(resource)
    for name in (*changes, *gone):
        find_config(known, name)
    await cluster.admin.alter_configs(
        resource, set=changes, delete=gone, validate_only=wanted.validate_only
    )


def _split(items: Iterable[ConfigChange]) -> tuple[dict[str, str], list[str]]:
    changes: dict[str, str] = {}
    gone: list[str] = []
    for item in items:
        if item.name in changes or item.name in gone:
            raise RestError(422, BAD_PAYLOAD, f"{item.name} is changed twice")
        if item.operation == "DELETE":
            gone.append(item.name)
        elif item.value is None:
            raise RestError(422, BAD_PAYLOAD, f"{item.name}: SET needs a value")
        else:
            changes[item.name] = item.value
    return changes, gone
