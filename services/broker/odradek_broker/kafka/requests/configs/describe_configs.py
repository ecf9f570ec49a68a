"""DescribeConfigs: of topics, of this broker, of all brokers, of groups. Secrets are not told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.configs.config_descriptions import (
    DescribedConfig,
    describe_broker,
    describe_group,
    describe_topic,
)
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DescribeConfigsResponse, Message
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_runtime.budget.refusals import shortened

_Result: Final = DescribeConfigsResponse.DescribeConfigsResult
_Config: Final = _Result.DescribeConfigsResourceResult
_Synonym: Final = _Config.DescribeConfigsSynonym
Refused = tuple[ErrorCode, str]


@handles(ApiKey.DESCRIBE_CONFIGS)
async def describe_configs(request: Request) -> Message:
    """From this broker's image and its own settings; of each resource once."""
    results = []
    asked = {(one.resource_type, one.resource_name): one for one in request.message.resources}
    async for resource in request.in_turns(asked.values()):
        found = _describe(request, resource.resource_type, resource.resource_name)
        refused: Refused = (ErrorCode.NONE, "")
        configs: Iterable[DescribedConfig] = ()
        if isinstance(found, tuple):
            refused = found
        else:
            configs = found
        wanted = frozenset(resource.configuration_keys or ())
        results.append(
            _Result(
                error_code=refused[0],
                error_message=refused[1] or None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[
                    _config(request, one) for one in configs if not wanted or one.name in wanted
                ],
            )
        )
    return DescribeConfigsResponse(results=results)


def _describe(request: Request, kind: int, name: str) -> Iterable[DescribedConfig] | Refused:
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
                text = f"this is broker {settings.node_id}, not {shortened(name)}"
                return ErrorCode.INVALID_REQUEST, text
            return describe_broker(settings, image, name)
        case ConfigResourceType.GROUP:
            if not request.allows_group(Operation.DESCRIBE_CONFIGS, name):
                return ErrorCode.GROUP_AUTHORIZATION_FAILED, ""
            return describe_group(image, name)
        case _:
            return ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no configs"


def _config(request: Request, one: DescribedConfig) -> Any:
    message = request.message
    return _Config(
        name=one.name,
        value=one.value,
        read_only=one.is_read_only,
        config_source=one.source,
        is_sensitive=one.is_sensitive,
        synonyms=[_Synonym(name=n, value=v, source=s) for n, v, s in one.synonyms]
        if message.include_synonyms
        else [],
        config_type=one.type,
        documentation=one.documentation if message.include_documentation else None,
    )
