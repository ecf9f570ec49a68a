"""What is told of configs: values, where they come from, and what would count without them.

    topic's own > this broker's own > default of all brokers > this process's settings > built in

A topic's config falls back on the broker config that is its default (`retention.ms` on
`log.retention.ms`), and the whole chain is told as synonyms (KIP-226).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from odradek_broker.settings import BrokerSettings
from odradek_protocol.metadata.config_definition import ConfigSource, ConfigType
from odradek_protocol.metadata.configs import (
    BROKER_CONFIGS,
    INTERNAL_TOPICS,
    TOPIC_CONFIGS,
)
from odradek_protocol.metadata.image import ALL_BROKERS, MetadataImage
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_runtime.settings import is_given, settings_text, specs_of

_TYPES: Final = {
    bool: ConfigType.BOOLEAN,
    int: ConfigType.LONG,
    float: ConfigType.DOUBLE,
    tuple: ConfigType.LIST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig:
    """One config; `synonyms` are (name, value, source), what counts first; values None if secret."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool
    type: int
    documentation: str
    synonyms: tuple[tuple[str, str | None, int], ...]


def describe_topic(
    settings: BrokerSettings, image: MetadataImage, topic: str
) -> Iterator[DescribedConfig]:
    """All configs of a topic."""
    own = image.config_of(ConfigResourceType.TOPIC, topic)
    for name, definition in sorted(TOPIC_CONFIGS.items()):
        chain: list[tuple[str, str, int]] = []
        if name in own:
            chain.append((name, own[name], ConfigSource.TOPIC))
        chain += _broker_chain(settings, image, str(settings.node_id), definition.default_name)
        default = definition.default
        if name == "durability" and topic in INTERNAL_TOPICS:
            default = "fsync"
        chain.append((definition.default_name, default, ConfigSource.DEFAULT))
        yield _described(name, chain, definition, is_read_only=False)


def describe_broker(
    settings: BrokerSettings, image: MetadataImage, broker: str
) -> Iterator[DescribedConfig]:
    """All configs of this broker, or with an empty name what is set for all brokers."""
    if not broker:
        for name, value in sorted(image.config_of(*ALL_BROKERS).items()):
            definition = BROKER_CONFIGS.get(name)
            chain = [(name, value, int(ConfigSource.ALL_BROKERS))]
            yield _described(name, chain, definition, is_read_only=False)
        return
    specs = specs_of(BrokerSettings)
    for name in sorted({*BROKER_CONFIGS, *specs}):
        definition = BROKER_CONFIGS.get(name)
        chain = _broker_chain(settings, image, broker, name)
        if definition is not None:
            chain.append((name, definition.default, ConfigSource.DEFAULT))
            yield _described(name, chain, definition, is_read_only=False)
            continue
        field, spec = specs[name]
        value = getattr(settings, field.name)
        if not chain:
            chain.append((name, settings_text(value), ConfigSource.DEFAULT))
        secret = spec.is_secret
        yield DescribedConfig(
            name=name,
            value=None if secret else chain[0][1],
            source=chain[0][2],
            is_read_only=True,
            is_sensitive=secret,
            type=_TYPES.get(type(value), ConfigType.STRING),
            documentation=spec.doc,
            synonyms=tuple((n, None if secret else v, s) for n, v, s in chain),
        )


def describe_group(image: MetadataImage, group: str) -> Iterator[DescribedConfig]:
    """What is set of a group."""
    for name, value in sorted(image.config_of(ConfigResourceType.GROUP, group).items()):
        chain = [(name, value, 8)]  # Kafka's DYNAMIC_GROUP_CONFIG
        yield _described(name, chain, None, is_read_only=False)


def _broker_chain(
    settings: BrokerSettings, image: MetadataImage, broker: str, name: str
) -> list[tuple[str, str, int]]:
    chain: list[tuple[str, str, int]] = []
    for resource, source in (
        ((ConfigResourceType.BROKER, broker), ConfigSource.BROKER),
        (ALL_BROKERS, ConfigSource.ALL_BROKERS),
    ):
        found: Mapping[str, str] = image.config_of(*resource)
        if name in found:
            chain.append((name, found[name], source))
    known = specs_of(BrokerSettings).get(name)
    if known is not None and is_given(settings, name):
        value = getattr(settings, known[0].name)
        chain.append((name, settings_text(value), ConfigSource.STATIC))
    return chain


def _described(
    name: str, chain: list[tuple[str, str, int]], definition: Any, *, is_read_only: bool
) -> DescribedConfig:
    secret = definition is not None and definition.is_sensitive
    return DescribedConfig(
        name=name,
        value=None if secret else chain[0][1],
        source=int(chain[0][2]),
        is_read_only=is_read_only,
        is_sensitive=secret,
        type=ConfigType.STRING if definition is None else definition.type,
        documentation="" if definition is None else definition.documentation,
        synonyms=tuple((n, None if secret else v, int(s)) for n, v, s in chain),
    )
