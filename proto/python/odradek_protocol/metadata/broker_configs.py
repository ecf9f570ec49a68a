"""The configs of brokers that can be set at run time: defaults for topics and cluster, limits.

On the resource broker "" a config is the default of all brokers. A cluster-wide one makes sense
only there: two brokers that disagree about `min.insync.replicas` would be two clusters.
"""

from __future__ import annotations

from typing import Any, Final

from odradek_protocol.metadata.config_definition import INT_MAX, ConfigDefinition, ConfigType
from odradek_protocol.metadata.topic_configs import TOPIC_CONFIGS


def _cluster(
    name: str, type_: ConfigType, default: object, documentation: str, **more: Any
) -> ConfigDefinition:  # Any: the fields of ConfigDefinition
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return ConfigDefinition(
        name=name,
        type=type_,
        default=text,
        documentation=documentation,
        is_cluster_wide=True,
        **more,
    )


def _as_broker_default(topic: ConfigDefinition) -> ConfigDefinition:
    return ConfigDefinition(
        name=topic.default_name,
        type=topic.type,
        default=topic.default,
        documentation=f"Default of {topic.name} for topics that do not set it. "
        + topic.documentation,
        minimum=topic.minimum,
        maximum=topic.maximum,
        choices=topic.choices,
        is_cluster_wide=True,
    )


_CLUSTER_CONFIGS: Final = (
    _cluster(
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether a topic that a client asks for is created.",
    ),
    _cluster(
        "auto.leader.rebalance.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether leaderships go back to the preferred leaders by themselves.",
    ),
    _cluster(
        "default.replication.factor",
        ConfigType.SHORT,
        1,
        "Replicas of topics that do not say how many.",
        minimum=1,
    ),
    _cluster(
        "leader.imbalance.check.interval.seconds",
        ConfigType.LONG,
        300,
        "How often the preferred leaders are looked at, in s.",
        minimum=1,
    ),
    _cluster(
        "leader.imbalance.per.broker.percentage",
        ConfigType.INT,
        10,
        "Share of a broker's preferred leaderships that may be elsewhere, in %.",
        minimum=0,
        maximum=100,
    ),
    _cluster(
        "num.partitions",
        ConfigType.INT,
        1,
        "Partitions of topics that do not say how many.",
        minimum=1,
    ),
    _cluster(
        "unclean.recovery.wait.ms",
        ConfigType.LONG,
        30_000,
        "With unclean election on: how long to wait for the last known good replicas before the "
        "longest log that is there may lead, in ms.",
        minimum=0,
    ),
)

_SINGLE_BROKER_CONFIGS: Final = (
    ConfigDefinition(
        name="max.connections",
        type=ConfigType.INT,
        default="10000",
        documentation="Connections of clients that a broker's Kafka listeners accept, all together.",
        minimum=0,
    ),
    ConfigDefinition(
        name="max.connections.per.ip",
        type=ConfigType.INT,
        default=str(INT_MAX),
        documentation="The same, from one address.",
        minimum=0,
    ),
)

BROKER_CONFIGS: Final[dict[str, ConfigDefinition]] = {
    definition.name: definition
    for definition in sorted(
        (
            *map(_as_broker_default, TOPIC_CONFIGS.values()),
            *_CLUSTER_CONFIGS,
            *_SINGLE_BROKER_CONFIGS,
        ),
        key=lambda definition: definition.name,
    )
}
