"""ListConfigResources: what configs may be asked of (KIP-1142; version 0 of client metrics alone)."""

from __future__ import annotations

from typing import Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import ListConfigResourcesResponse, Message
from odradek_protocol.metadata.records import ConfigResourceType

_CLIENT_METRICS: Final = 16  # there are none: metrics of clients are not taken
_BROKER_LOGGER: Final = 8
_KNOWN: Final = frozenset({*map(int, ConfigResourceType), _CLIENT_METRICS, _BROKER_LOGGER})
_Resource: Final = ListConfigResourcesResponse.ConfigResource


@handles(ApiKey.LIST_CONFIG_RESOURCES)
async def list_config_resources(request: Request) -> Message:
    """Names by type; all types if none is named."""
    if not request.allows_cluster(Operation.DESCRIBE_CONFIGS):
        return ListConfigResourcesResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, config_resources=[]
        )
    if request.version == 0:
        return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=[])
    wanted = set(request.message.resource_types) or _KNOWN
    if not wanted <= _KNOWN:
        return ListConfigResourcesResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[]
        )
    image = request.services.image
    found: list[tuple[int, str]] = []
    if ConfigResourceType.TOPIC in wanted:
        found += [(ConfigResourceType.TOPIC, one.name) for one in image.topics.values()]
    if ConfigResourceType.BROKER in wanted:
        found += [(ConfigResourceType.BROKER, str(one)) for one in image.brokers]
    if ConfigResourceType.GROUP in wanted:
        found += [resource for resource in image.configs if resource[0] == ConfigResourceType.GROUP]
    return ListConfigResourcesResponse(
        error_code=ErrorCode.NONE,
        config_resources=[
            _Resource(resource_name=n, resource_type=int(k))
            async for k, n in request.in_turns(found)
        ],
    )
