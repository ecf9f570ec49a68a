"""ApiVersions: what this broker does, and the features of its cluster (KIP-511, KIP-584)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from odradek_broker.kafka_api.registry import handles
from odradek_broker.kafka_api.request import Request
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import ApiVersionsResponse, Message

_NAME_OR_VERSION: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_WITH_SOFTWARE: Final = 3
_LEVEL_0_FROM: Final = 4  # Java clients before 3.9 refuse a broker that tells 0 (KAFKA-17492)

# What the broker supports, as (lowest, highest). Levels in use are the image's: a client may only
# use what all brokers of the cluster have agreed on.
SUPPORTED_FEATURES: Final = {"group.version": (0, 1)}


@handles(ApiKey.API_VERSIONS)
def api_versions(request: Request) -> Message:
    """The registry's keys; the client says who it is from version 3 on."""
    message = request.message
    keys = _keys(request.services.advertised())
    if request.version >= _WITH_SOFTWARE:
        name, version = message.client_software_name, message.client_software_version
        if not _NAME_OR_VERSION.fullmatch(name) or not _NAME_OR_VERSION.fullmatch(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        request.session.client_software = f"{name} {version}"
    image = request.services.image
    supported = {
        name: levels
        for name, levels in SUPPORTED_FEATURES.items()
        if name != "group.version" or request.services.groups is not None
    }
    finalized = {
        name: min(image.features.get(name, 0), highest) for name, (_, highest) in supported.items()
    }
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE,
        api_keys=keys,
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(
                name=name, min_version=lowest, max_version=highest
            )
            for name, (lowest, highest) in supported.items()
            if lowest > 0 or request.version >= _LEVEL_0_FROM
        ],
        finalized_features_epoch=max(int(image.offset), 0),
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(
                name=name, min_version_level=level, max_version_level=level
            )
            for name, level in finalized.items()
            if level > 0
        ],
    )


def unknown_version(advertised: Iterable[tuple[int, int, int]]) -> Message:
    """To a client of a later version: in version 0, with all keys, so that it need not guess (KIP-511)."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_keys(advertised))


def _keys(advertised: Iterable[tuple[int, int, int]]) -> list[Any]:
    return [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=lowest, max_version=highest)
        for key, lowest, highest in advertised
    ]
