"""Functions that look up the values of configs. Controllers, brokers, the command line and REST use them.

A topic config has the value that is set for the topic. If none is set, the config has the cluster's default, which is a
config of the broker resource "" (all brokers). If that default is not set either, the config has its built-in default.
The topic's value and the cluster's default can be changed at run time.
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
    """Return an error text that says why resources of this type have no configs in Odradek.

    `resource_type` is a number of Kafka's ConfigResource.Type, or an unknown number.
    """
    return _WITHOUT_CONFIGS.get(
        resource_type,
        f"resources of type {resource_type} have no configs; only topics (2), brokers (4) and groups (32) have configs",
    )


_WITHOUT_CONFIGS: Final = {
    8: "log levels cannot be changed at run time: set log.level and restart the broker",
    16: "brokers do not collect metrics from clients (KIP-714), so there are no client-metrics configs; clients work"
    " without them",
}


def definitions(resource_type: ConfigResourceType) -> dict[str, ConfigDefinition]:
    """Return the definitions of all configs that resources of this type have, by name."""
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
    """Return the definition of a config. Raises `ConfigError`, which names the most similar config, if none exists."""
    table = definitions(resource_type)
    if (definition := table.get(name)) is None:
        raise unknown_config(resource_type.name.lower(), name, table)
    return definition


def check_config(resource_type: ConfigResourceType, name: str, value: str) -> ConfigValue:
    """Parse the value of a config. Raises `ConfigError` if the config is unknown or does not allow the value."""
    return definition_of(resource_type, name).parse(value)


def check_together(topic_configs: dict[str, str]) -> None:
    """Raise `ConfigError` if the configs that are set for a topic contradict each other."""
    lags = [
        topic_configs.get(name, TOPIC_CONFIGS[name].default)
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    ]
    if int(lags[0]) > int(lags[1]):
        raise ConfigError(
            f"min.compaction.lag.ms ({lags[0]}) is above max.compaction.lag.ms ({lags[1]})"
        )


def check_group_together(group_configs: dict[str, str]) -> None:
    """Raise `ConfigError` if the configs that are set for a group contradict each other."""
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
    """Return the present value of a topic config, and where the value comes from."""
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
    """Return the present value of a broker config, and where the value comes from.

    `broker` is the broker id as text, or "" for the default of all brokers. The settings with which the broker was
    started are not known here.
    """
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
    """Return the present value of a group config, and where the value comes from.

    If the config is not set for the group, return the built-in default. If a setting of the broker overrides that
    default, the caller must apply the setting.
    """
    own = image.config_of(ConfigResourceType.GROUP, group)
    if definition.name in own:
        return own[definition.name], ConfigSource.GROUP
    return definition.default, ConfigSource.DEFAULT


def cluster_config(image: MetadataImage, name: str) -> ConfigValue:
    """Return the present value of a cluster-wide config, parsed."""
    definition = BROKER_CONFIGS[name]
    return definition.parse(resolve_broker_config(image, "", definition)[0])


def set_topic_configs(image: MetadataImage, topic: str) -> dict[str, str]:
    """Return the topic configs that are set for a topic or as the cluster's default, by the names of the topic configs.

    A value that is set for the topic takes precedence. Configs that are set nowhere are missing, and the caller applies
    its own defaults.
    """
    values: dict[str, str] = {}
    cluster = image.config_of(*ALL_BROKERS)
    if cluster:
        for definition in TOPIC_CONFIGS.values():
            if definition.default_name in cluster:
                values[definition.name] = cluster[definition.default_name]
    values.update(image.config_of(ConfigResourceType.TOPIC, topic))
    return values
