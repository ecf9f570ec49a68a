"""This broker's own configs, as DescribeConfigs reports them."""

from __future__ import annotations

from typing import Final

from odradek_broker.settings import BrokerSettings
from odradek_protocol.metadata.configs import BROKER_CONFIGS
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_runtime.settings import is_given, settings_text, specs_of

_SOURCE_DYNAMIC_BROKER: Final = 2
_SOURCE_DYNAMIC_DEFAULT: Final = 3
_SOURCE_STATIC: Final = 4
_SOURCE_DEFAULT: Final = 5
_TYPES: Final = {bool: 1, str: 2, int: 3, float: 6, tuple: 7}


def describe_broker(
    settings: BrokerSettings, image: MetadataImage, resource: pb.ConfigResource
) -> pb.ConfigResourceResult:
    """Return the configs of this broker.

    A value set at run time for this broker wins over one for all brokers, and both win over the settings.
    """
    result = pb.ConfigResourceResult(type=resource.type, name=resource.name)
    own = image.config_of(ConfigResourceType.BROKER, resource.name)
    all_brokers = image.config_of(ConfigResourceType.BROKER, "")
    requested_names = set(resource.config_names)
    for name, (field, spec) in specs_of(BrokerSettings).items():
        if requested_names and name not in requested_names:
            continue
        value = getattr(settings, field.name)
        text = settings_text(value)
        source = _SOURCE_STATIC if is_given(settings, name) else _SOURCE_DEFAULT
        if name in own:
            text, source = own[name], _SOURCE_DYNAMIC_BROKER
        elif name in all_brokers:
            text, source = all_brokers[name], _SOURCE_DYNAMIC_DEFAULT
        entry = result.entries.add(
            name=name,
            source=source,
            is_read_only=name not in BROKER_CONFIGS,
            is_sensitive=spec.is_secret,
            type=_TYPES.get(type(value), 2),
            documentation=spec.doc,
        )
        if not spec.is_secret:
            entry.value = text
    return result
