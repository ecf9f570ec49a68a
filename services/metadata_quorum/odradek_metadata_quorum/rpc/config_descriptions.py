"""What configs a resource has, with their values and sources, from the image (KIP-226)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import (
    definitions,
    resolve_broker_config,
    resolve_topic_config,
)
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb


def describe(
    image: MetadataImage, resource: pb.ConfigResource, *, with_documentation: bool
) -> pb.ConfigResourceResult:
    """The configs of one resource that can be altered; brokers add their static ones."""
    result = pb.ConfigResourceResult(type=resource.type, name=resource.name)
    if resource.type == pb.CONFIG_RESOURCE_TYPE_TOPIC:
        if image.topic(resource.name) is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            result.error_message = f"there is no topic {resource.name}"
            return result
    elif resource.type != pb.CONFIG_RESOURCE_TYPE_BROKER:
        result.error_code = ErrorCode.INVALID_REQUEST
        result.error_message = "only topics (2) and brokers (4) have configs here"
        return result
    result.entries.extend(
        _entries(
            image,
            ConfigResourceType(resource.type),
            resource.name,
            frozenset(resource.config_names),
            with_documentation,
        )
    )
    return result


def _entries(
    image: MetadataImage,
    resource_type: ConfigResourceType,
    resource: str,
    wanted: Collection[str],
    with_documentation: bool,
) -> Iterator[pb.ConfigEntry]:
    for name, definition in sorted(definitions(resource_type).items()):
        if wanted and name not in wanted:
            continue
        if resource_type is ConfigResourceType.TOPIC:
            value, source = resolve_topic_config(image, resource, definition)
        else:
            value, source = resolve_broker_config(image, resource, definition)
        yield pb.ConfigEntry(
            name=name,
            value=None if definition.is_sensitive else value,
            source=source,
            is_sensitive=definition.is_sensitive,
            type=definition.type,
            documentation=definition.documentation if with_documentation else "",
        )
