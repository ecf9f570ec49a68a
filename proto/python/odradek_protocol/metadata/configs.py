"""Lookups of configs, for controllers, brokers, the command line and REST.

A topic config's value is the topic's own, else the cluster's default (a broker config, set on the
resource broker ""), else the built-in default. The first two can be changed at run time without a restart.
"""

from __future__ import annotations

from typing import Final

from odradek_protocol.metadata.config_definitions import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    INERT_TOPIC_CONFIGS,
    TOPIC_CONFIGS,
    ConfigDefinition,
    ConfigError,
    ConfigSource,
    ConfigValue,
    unknown_config,
)
from odradek_protocol.metadata.image import ALL_BROKERS, MetadataImage
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_protocol.topic_names import INTERNAL_TOPICS

__all__ = [
    "BROKER_CONFIGS",
    "GROUP_CONFIGS",
    "INERT_TOPIC_CONFIGS",
    "INTERNAL_TOPICS",
    "TOPIC_CONFIGS",
    "ConfigError",
    "ConfigSource",
    "check_config",
    "check_group_together",
    "check_together",
    "cluster_config",
    "definition_of",
    "definitions",
    "resolve_broker_config",
    "resolve_group_config",
    "resolve_topic_config",
    "set_topic_configs",
]


def why_no_configs(resource_type: int) -> str:
    """Return why resources of a type have no configs here. The type may be one of Kafka's, or unknown."""
    return _WITHOUT_CONFIGS.get(
        resource_type,
        f"resources of type {resource_type} have no configs; topics (2), brokers (4) and groups (32) have",
    )


_WITHOUT_CONFIGS: Final = {
    8: "the levels of loggers cannot be changed at run time: set log.level and restart the broker",
    16: "brokers do not collect metrics of clients (KIP-714), so there are no client-metrics to configure; clients work"
    " without",
}


def definitions(resource_type: ConfigResourceType) -> dict[str, ConfigDefinition]:
    """Return the configs of resources of this type, by name."""
    match resource_type:
        case ConfigResourceType.TOPIC:
            return TOPIC_CONFIGS | INERT_TOPIC_CONFIGS
        case ConfigResourceType.BROKER:
            return BROKER_CONFIGS
        case ConfigResourceType.GROUP:
            return GROUP_CONFIGS
        case _:
            return {}


def definition_of(resource_type: ConfigResourceType, name: str) -> ConfigDefinition:
    """Return the config of this name; raises `ConfigError` with the nearest name if there is none."""
    table = definitions(resource_type)
    if (definition := table.get(name)) is None:
        raise unknown_config(resource_type.name.lower(), name, table)
    return definition


def check_config(resource_type: ConfigResourceType, name: str, value: str) -> ConfigValue:
    """Parse a config's value; raises `ConfigError` if the config is unknown or does not take the value."""
    return definition_of(resource_type, name).parse(value)


def check_together(topic_configs: dict[str, str]) -> None:
    """Check whether a topic's own configs contradict each other; raises `ConfigError` if they do."""
    lags = [
        topic_configs.get(name, TOPIC_CONFIGS[name].default)
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    ]
    if int(lags[0]) > int(lags[1]):
        raise ConfigError(
            f"min.compaction.lag.ms ({lags[0]}) is above max.compaction.lag.ms ({lags[1]})"
        )


def check_group_together(group_configs: dict[str, str]) -> None:
    """Check whether a group's own configs contradict each other; raises `ConfigError` if they do."""
    heartbeat_ms = group_configs.get("consumer.heartbeat.interval.ms")
    session_ms = group_configs.get("consumer.session.timeout.ms")
    if heartbeat_ms and session_ms and int(heartbeat_ms) >= int(session_ms):
        raise ConfigError(
            f"consumer.heartbeat.interval.ms ({heartbeat_ms}) must be below"
            f" consumer.session.timeout.ms ({session_ms})"
        )


def resolve_topic_config(
    image: MetadataImage, topic: str, definition: ConfigDefinition
) -> tuple[str, ConfigSource]:
    """Return a topic config's present value and its source."""
    own = image.config_of(ConfigResourceType.TOPIC, topic)
    if definition.name in own:
        return own[definition.name], ConfigSource.TOPIC
    cluster = image.config_of(*ALL_BROKERS)
    if definition.default_name in cluster:
        return cluster[definition.default_name], ConfigSource.ALL_BROKERS
    if definition.name == "durability" and topic in INTERNAL_TOPICS:
        return "fsync", ConfigSource.DEFAULT
    return definition.default, ConfigSource.DEFAULT


def resolve_broker_config(
    image: MetadataImage, broker: str, definition: ConfigDefinition
) -> tuple[str, ConfigSource]:
    """Return a broker config's present value and its source; broker "" is the default of all brokers."""
    own = image.config_of(ConfigResourceType.BROKER, broker)
    if broker and definition.name in own:
        return own[definition.name], ConfigSource.BROKER
    cluster = image.config_of(*ALL_BROKERS)
    if definition.name in cluster:
        return cluster[definition.name], ConfigSource.ALL_BROKERS
    return definition.default, ConfigSource.DEFAULT


def resolve_group_config(
    image: MetadataImage, group: str, definition: ConfigDefinition
) -> tuple[str, ConfigSource]:
    """Return a group config's present value and its source; a broker adds its own default."""
    own = image.config_of(ConfigResourceType.GROUP, group)
    if definition.name in own:
        return own[definition.name], ConfigSource.GROUP
    return definition.default, ConfigSource.DEFAULT


def cluster_config(image: MetadataImage, name: str) -> ConfigValue:
    """Return a cluster-wide config's present value, parsed."""
    definition = BROKER_CONFIGS[name]
    return definition.parse(resolve_broker_config(image, "", definition)[0])


def set_topic_configs(image: MetadataImage, topic: str) -> dict[str, str]:
    """Return the configs that are set for a topic, by their topic names; unset ones are left out.

    The topic's own value wins over the cluster's default; a process adds its own defaults.
    """
    values: dict[str, str] = {}
    cluster = image.config_of(*ALL_BROKERS)
    if cluster:
        for definition in TOPIC_CONFIGS.values():
            if definition.default_name in cluster:
                values[definition.name] = cluster[definition.default_name]
    values.update(image.config_of(ConfigResourceType.TOPIC, topic))
    return values
