"""UpdateFeatures: raises or lowers what the whole cluster uses (KIP-584, KIP-1022), one after the other.

Up to version 1 each feature has a result of its own. From version 2 on there is one for all: nothing is changed
unless every level is valid, and the first that the controller refuses ends the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from odradek_broker.kafka.forwarding import Unanswered, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message, UpdateFeaturesResponse
from odradek_protocol.metadata.features import SUPPORTED_FEATURES
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_runtime.budget.refusals import shortened

_UPGRADE: Final = 1
_ONE_RESULT_FROM: Final = 2
_Result: Final = UpdateFeaturesResponse.UpdatableFeatureResult


@handles(ApiKey.UPDATE_FEATURES)
async def update_features(request: Request) -> Message:
    """See the module."""
    if not request.allows_cluster(Operation.ALTER):
        return _response(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    updates = request.message.feature_updates
    if request.version >= _ONE_RESULT_FROM:
        return await _all_or_none(request, updates)
    results = []
    async for one in request.in_turns(updates):
        code, text = _refuse(one)
        if code is ErrorCode.NONE and not _only_validates(request):
            code, text = await _change(request, one)
        results.append(_Result(feature=one.feature, error_code=code, error_message=text or None))
    return _response(ErrorCode.NONE, results=results)


async def _all_or_none(request: Request, updates: Sequence[Any]) -> Message:
    async for one in request.in_turns(updates):
        code, text = _refuse(one)
        if code is not ErrorCode.NONE:
            return _response(code, text)
    if not _only_validates(request):
        for one in updates:
            code, text = await _change(request, one)
            if code != ErrorCode.NONE:
                return _response(code, text)
    return _response(ErrorCode.NONE)


def _response(code: int, text: str = "", results: Sequence[Any] = ()) -> Message:
    return UpdateFeaturesResponse(
        error_code=code, error_message=text or None, results=list(results)
    )


def _only_validates(request: Request) -> bool:
    return request.version >= 1 and bool(request.message.validate_only)


def _refuse(one: Any) -> tuple[int, str]:
    lowest, highest = SUPPORTED_FEATURES.get(one.feature, (0, 0))
    if lowest <= one.max_version_level <= highest:
        return ErrorCode.NONE, ""
    feature = shortened(one.feature)
    text = f"{feature} has the levels {lowest} to {highest}, not {one.max_version_level}"
    return ErrorCode.INVALID_UPDATE_VERSION, text


async def _change(request: Request, one: Any) -> tuple[int, str]:
    allow_downgrade = one.allow_downgrade if request.version == 0 else one.upgrade_type != _UPGRADE
    asked = pb.UpdateFeaturesRequest(
        name=one.feature, level=one.max_version_level, allow_downgrade=allow_downgrade
    )
    try:
        answer = await change(
            request, "UpdateFeatures", asked, timeout_ms=request.message.timeout_ms
        )
    except Unanswered as unanswered:
        return unanswered.code, str(unanswered)
    return answer.error_code, answer.error_message
