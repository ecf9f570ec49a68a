"""v3: configs of anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.admin.descriptions import ConfigSource, ConfigValue
from odradek_gateway.rest.errors import RestError
from odradek_gateway.rest.v3_resources import Names

_SOURCES = {
    ConfigSource.UNKNOWN: "UNKNOWN",
    ConfigSource.TOPIC: "DYNAMIC_TOPIC_CONFIG",
    ConfigSource.BROKER: "DYNAMIC_BROKER_CONFIG",
    ConfigSource.BROKER_DEFAULT: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    ConfigSource.STATIC: "STATIC_BROKER_CONFIG",
    ConfigSource.BUILT_IN: "DEFAULT_CONFIG",
    ConfigSource.GROUP: "DYNAMIC_GROUP_CONFIG",
}


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
