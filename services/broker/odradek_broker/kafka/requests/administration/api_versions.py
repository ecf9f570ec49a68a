"""ApiVersions: the requests that this broker serves, and the features of its cluster (KIP-511, KIP-584).

From version 5 on, the request contains the cluster id and the broker id that the client expects (KIP-1242). The address
of a broker may be reassigned to another broker or cluster while clients have the old assignment cached. A client that
reaches the wrong broker gets REBOOTSTRAP_REQUIRED, and connects to its bootstrap servers again.
"""

from __future__ import annotations

import re
from typing import Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import ApiVersionsRequest, ApiVersionsResponse
from odradek_protocol.metadata.features import (
    GROUP_VERSION,
    SUPPORTED_FEATURES,
    TRANSACTION_VERSION,
)

_NAME_OR_VERSION: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_WITH_SOFTWARE: Final = 3
_WITH_NODE: Final = 5
# Java clients before 3.9, which send lower versions of this request, cannot connect to a broker that reports a feature
# whose lowest level is 0 (KAFKA-17492).
_LEVEL_0_FROM: Final = 4


@handles(ApiVersionsRequest)
def api_versions(request: Request[ApiVersionsRequest]) -> ApiVersionsResponse:
    """List the requests that this broker serves. From version 3 on, the request names the client's software."""
    message = request.message
    if request.version >= _WITH_NODE and (error := _wrong_node(request)) is not ErrorCode.NONE:
        return ApiVersionsResponse(error_code=error, api_keys=[])
    if request.version >= _WITH_SOFTWARE:
        name, version = message.client_software_name, message.client_software_version
        if not _NAME_OR_VERSION.fullmatch(name) or not _NAME_OR_VERSION.fullmatch(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        request.session.client_software = f"{name} {version}"
    image = request.services.image
    supported = {
        name: levels
        for name, levels in SUPPORTED_FEATURES.items()
        if name != GROUP_VERSION or request.services.groups is not None
    }
    finalized = {
        name: min(image.feature_level(name), highest) for name, (_, highest) in supported.items()
    }
    if not image.has_transactions:
        finalized[TRANSACTION_VERSION] = 0
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE,
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=lowest, max_version=highest)
            for key, lowest, highest in request.services.advertised()
        ],
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


def unknown_version() -> ApiVersionsResponse:
    """Return the response to an ApiVersions request of an unsupported version: a version 0 response with the
    supported range (KIP-511).
    """
    served = SUPPORTED[ApiKey.API_VERSIONS]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=ApiKey.API_VERSIONS, min_version=served.lowest, max_version=served.highest
            )
        ],
    )


def _wrong_node(request: Request[ApiVersionsRequest]) -> ErrorCode:
    cluster_id, node_id = request.message.cluster_id, request.message.node_id
    if (cluster_id is None) != (node_id == -1):
        return ErrorCode.INVALID_REQUEST
    here = (request.services.cluster_id, request.services.broker_id)
    if cluster_id is not None and (cluster_id, node_id) != here:
        return ErrorCode.REBOOTSTRAP_REQUIRED
    return ErrorCode.NONE
