"""ListConfigResources: the resources that have configs (KIP-1142). Version 0 lists client metrics alone."""

from __future__ import annotations

from typing import Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from odradek_protocol.metadata.records import ConfigResourceType

_CLIENT_METRICS: Final = 16  # there are none: the broker takes no metrics of clients
_BROKER_LOGGER: Final = 8
_KNOWN_TYPES: Final = frozenset({*map(int, ConfigResourceType), _CLIENT_METRICS, _BROKER_LOGGER})
_Resource = ListConfigResourcesResponse.ConfigResource


def _refuse(_request: AnyRequest, code: ErrorCode) -> ListConfigResourcesResponse:
    return ListConfigResourcesResponse(error_code=code, config_resources=[])


@handles(ListConfigResourcesRequest, refuse=_refuse)
async def list_config_resources(
    request: Request[ListConfigResourcesRequest],
) -> ListConfigResourcesResponse:
    """List the resources of the types named, or of all types if none is named."""
    if request.version == 0:
        return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=[])
    types = set(request.message.resource_types) or _KNOWN_TYPES
    if not types <= _KNOWN_TYPES:
        return _refuse(request, ErrorCode.UNSUPPORTED_VERSION)
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
