"""DescribeConfigs and ListConfigResources: the values and sources of configs, and the resources that have configs.

The first source that sets a config determines the value:

    config of the topic > config of this broker > config of all brokers > this process's settings > built-in default

If the topic does not set a config, the value is that of the matching broker config (`log.retention.ms` for
`retention.ms`). The response lists the whole chain as synonyms (KIP-226), and never contains the values of secrets.
ListConfigResources lists the resources that have configs (KIP-1142); its version 0 lists only client metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_broker.settings import BrokerSettings
from odradek_protocol.access import Operation
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from odradek_protocol.metadata.config_definitions import ConfigDefinition, ConfigSource, ConfigType
from odradek_protocol.metadata.configs import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    INERT_TOPIC_CONFIGS,
    INTERNAL_TOPICS,
    TOPIC_CONFIGS,
    why_no_configs,
)
from odradek_protocol.metadata.image import ALL_BROKERS, MetadataImage
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_runtime.budget.refusals import shortened
from odradek_runtime.settings import is_given, settings_text, specs_of

_Result = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Result.DescribeConfigsResourceResult
_Synonym = _Config.DescribeConfigsSynonym
_Refusal: TypeAlias = tuple[ErrorCode, str]
# Resources of this type have no configs in this cluster, because its brokers do not collect metrics from clients.
_CLIENT_METRICS: Final = 16
_BROKER_LOGGER: Final = 8
_KNOWN_TYPES: Final = frozenset({*map(int, ConfigResourceType), _CLIENT_METRICS, _BROKER_LOGGER})
_Resource = ListConfigResourcesResponse.ConfigResource


@handles(DescribeConfigsRequest)
async def describe_configs(request: Request[DescribeConfigsRequest]) -> DescribeConfigsResponse:
    """Describe each resource once, from this broker's metadata image and its settings."""
    results = []
    resources = {
        (resource.resource_type, resource.resource_name): resource
        for resource in request.message.resources
    }
    async for resource in request.in_turns(resources.values()):
        described = _describe(request, resource.resource_type, resource.resource_name)
        code, text = ErrorCode.NONE, ""
        configs: Iterable[DescribedConfig] = ()
        if isinstance(described, tuple):
            code, text = described
        else:
            configs = described
        names = frozenset(resource.configuration_keys or ())
        results.append(
            _Result(
                error_code=code,
                error_message=text or None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[
                    _config(request, config)
                    for config in configs
                    if not names or config.name in names
                ],
            )
        )
    return DescribeConfigsResponse(results=results)


def _describe(request: AnyRequest, kind: int, name: str) -> Iterator[DescribedConfig] | _Refusal:
    settings, image = request.services.settings, request.services.image
    match kind:
        case ConfigResourceType.TOPIC:
            if not request.allows_topic(Operation.DESCRIBE_CONFIGS, name):
                return ErrorCode.TOPIC_AUTHORIZATION_FAILED, ""
            if image.topic(name) is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""
            return describe_topic(settings, image, name)
        case ConfigResourceType.BROKER:
            if not request.allows_cluster(Operation.DESCRIBE_CONFIGS):
                return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ""
            if name and name != str(settings.node_id):
                text = f"this is broker {settings.node_id}: send the request to broker {shortened(name)} itself"
                return ErrorCode.INVALID_REQUEST, text
            return describe_broker(settings, image, name)
        case ConfigResourceType.GROUP:
            if not request.allows_group(Operation.DESCRIBE_CONFIGS, name):
                return ErrorCode.GROUP_AUTHORIZATION_FAILED, ""
            return describe_group(settings, image, name)
        case _:
            return ErrorCode.INVALID_REQUEST, why_no_configs(kind)


def _config(request: Request[DescribeConfigsRequest], config: DescribedConfig) -> _Config:
    message = request.message
    return _Config(
        name=config.name,
        value=config.value,
        read_only=config.is_read_only,
        config_source=config.source,
        is_sensitive=config.is_sensitive,
        synonyms=[
            _Synonym(name=name, value=value, source=source)
            for name, value, source in config.synonyms
        ]
        if message.include_synonyms
        else [],
        config_type=config.type,
        documentation=config.documentation if message.include_documentation else None,
    )


_TYPES: Final = {
    bool: ConfigType.BOOLEAN,
    int: ConfigType.LONG,
    float: ConfigType.DOUBLE,
    tuple: ConfigType.LIST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig:
    """A config with its value. `synonyms` are (name, value, source), and the first one is in effect.

    The values of sensitive configs are None.
    """

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool
    type: int
    documentation: str
    synonyms: tuple[tuple[str, str | None, int], ...]


def describe_topic(
    settings: BrokerSettings,
    image: MetadataImage,
    topic: str,
    own: Mapping[str, str] | None = None,
) -> Iterator[DescribedConfig]:
    """Yield all configs of a topic. `own` are the configs that the topic sets; None: the configs in the image."""
    if own is None:
        own = image.config_of(ConfigResourceType.TOPIC, topic)
    inert = {name: INERT_TOPIC_CONFIGS[name] for name in own.keys() & INERT_TOPIC_CONFIGS.keys()}
    for name, definition in sorted({**TOPIC_CONFIGS, **inert}.items()):
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
    """Yield all configs of this broker. If `broker` is empty, yield the configs that are set for all brokers."""
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


def describe_group(
    settings: BrokerSettings, image: MetadataImage, group: str
) -> Iterator[DescribedConfig]:
    """Yield all configs of a group. The broker's settings are the defaults."""
    own = image.config_of(ConfigResourceType.GROUP, group)
    for name, definition in sorted(GROUP_CONFIGS.items()):
        chain: list[tuple[str, str, int]] = []
        if name in own:
            chain.append((name, own[name], ConfigSource.GROUP))
        chain += _broker_chain(settings, image, str(settings.node_id), definition.default_name)
        chain.append((definition.default_name, definition.default, ConfigSource.DEFAULT))
        yield _described(name, chain, definition, is_read_only=False)


def _broker_chain(
    settings: BrokerSettings, image: MetadataImage, broker: str, name: str
) -> list[tuple[str, str, int]]:
    chain: list[tuple[str, str, int]] = []
    for resource, source in (
        ((ConfigResourceType.BROKER, broker), ConfigSource.BROKER),
        (ALL_BROKERS, ConfigSource.ALL_BROKERS),
    ):
        configs: Mapping[str, str] = image.config_of(*resource)
        if name in configs:
            chain.append((name, configs[name], source))
    setting = specs_of(BrokerSettings).get(name)
    if setting is not None and is_given(settings, name):
        value = getattr(settings, setting[0].name)
        chain.append((name, settings_text(value), ConfigSource.STATIC))
    return chain


def _described(
    name: str,
    chain: list[tuple[str, str, int]],
    definition: ConfigDefinition | None,
    *,
    is_read_only: bool,
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


def _refuse_list(_request: AnyRequest, code: ErrorCode) -> ListConfigResourcesResponse:
    return ListConfigResourcesResponse(error_code=code, config_resources=[])


@handles(ListConfigResourcesRequest, refuse=_refuse_list)
async def list_config_resources(
    request: Request[ListConfigResourcesRequest],
) -> ListConfigResourcesResponse:
    """List the resources of the requested types, or of all types if the request names none."""
    if request.version == 0:
        return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=[])
    types = set(request.message.resource_types) or _KNOWN_TYPES
    if not types <= _KNOWN_TYPES:
        return _refuse_list(request, ErrorCode.UNSUPPORTED_VERSION)
    image = request.services.image
    resources: list[tuple[int, str]] = []
    if ConfigResourceType.TOPIC in types:
        resources += [(ConfigResourceType.TOPIC, topic.name) for topic in image.topics.values()]
    if ConfigResourceType.BROKER in types:
        resources += [(ConfigResourceType.BROKER, str(broker_id)) for broker_id in image.brokers]
    if ConfigResourceType.GROUP in types:
        resources += [key for key in image.configs if key[0] == ConfigResourceType.GROUP]
    return ListConfigResourcesResponse(
        error_code=ErrorCode.NONE,
        config_resources=[
            _Resource(resource_name=name, resource_type=int(kind))
            async for kind, name in request.in_turns(resources)
        ],
    )
