"""UpdateFeatures: raises or lowers what the whole cluster uses (KIP-584), one after the other."""

from __future__ import annotations

from typing import Final

from odradek_broker.kafka_api.api_versions import SUPPORTED_FEATURES
from odradek_broker.kafka_api.forwarding import Unanswered, change
from odradek_broker.kafka_api.registry import handles
from odradek_broker.kafka_api.request import Request
from odradek_broker.security.rights import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message, UpdateFeaturesResponse
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

_UPGRADE: Final = 1
_Result: Final = UpdateFeaturesResponse.UpdatableFeatureResult


@handles(ApiKey.UPDATE_FEATURES)
async def update_features(request: Request) -> Message:
    """Stops at none: each feature has its own result."""
    if not request.allows_cluster(Operation.ALTER):
        return UpdateFeaturesResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=None, results=[]
        )
    message = request.message
    results = []
    for one in message.feature_updates:
        allow_downgrade = (
            one.allow_downgrade if request.version == 0 else one.upgrade_type != _UPGRADE
        )
        code, text = await _update(request, one.feature, one.max_version_level, allow_downgrade)
        results.append(_Result(feature=one.feature, error_code=code, error_message=text or None))
    return UpdateFeaturesResponse(error_code=ErrorCode.NONE, error_message=None, results=results)


async def _update(
    request: Request, name: str, level: int, allow_downgrade: bool
) -> tuple[int, str]:
    lowest, highest = SUPPORTED_FEATURES.get(name, (0, 0))
    if not lowest <= level <= highest:
        return (
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name} has the levels {lowest} to {highest}, not {level}",
        )
    if request.version >= 1 and request.message.validate_only:
        return ErrorCode.NONE, ""
    asked = pb.UpdateFeaturesRequest(name=name, level=level, allow_downgrade=allow_downgrade)
    try:
        answer = await change(
            request, "UpdateFeatures", asked, timeout_ms=request.message.timeout_ms
        )
    except Unanswered as unanswered:
        return unanswered.code, str(unanswered)
    return answer.error_code, answer.error_message
