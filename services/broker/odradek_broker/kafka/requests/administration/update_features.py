"""UpdateFeatures: raises or lowers feature levels of the whole cluster, one after the other (KIP-584, KIP-1022).

Up to version 1, each feature has its own result. From version 2 on, there is one result for the whole request: no
feature is changed unless all levels are valid, and the first change that the controller refuses ends the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from odradek_broker.kafka.forwarding import ControllerUnavailable, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import UpdateFeaturesRequest, UpdateFeaturesResponse
from odradek_protocol.metadata.features import SUPPORTED_FEATURES
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_runtime.budget.refusals import shortened

_UPGRADE: Final = 1
_UPGRADE_TYPES: Final = range(1, 4)  # 1 upgrade, 2 safe downgrade, 3 unsafe downgrade
_ONE_RESULT_FROM: Final = 2
_Update = UpdateFeaturesRequest.FeatureUpdateKey
_Result = UpdateFeaturesResponse.UpdatableFeatureResult


def _refuse(_request: AnyRequest, code: ErrorCode) -> UpdateFeaturesResponse:
    return _response(code)


@handles(UpdateFeaturesRequest, refuse=_refuse)
async def update_features(request: Request[UpdateFeaturesRequest]) -> UpdateFeaturesResponse:
    """Change feature levels, or only validate the changes."""
    updates = request.message.feature_updates
    if request.version >= _ONE_RESULT_FROM:
        return await _all_or_none(request, updates)
    results = []
    async for update in request.in_turns(updates):
        code, text = _error_of(request, update)
        if code == ErrorCode.NONE and not _only_validates(request):
            code, text = await _change(request, update)
        results.append(_Result(feature=update.feature, error_code=code, error_message=text or None))
    return _response(ErrorCode.NONE, results=results)


async def _all_or_none(
    request: Request[UpdateFeaturesRequest], updates: Sequence[_Update]
) -> UpdateFeaturesResponse:
    async for update in request.in_turns(updates):
        code, text = _error_of(request, update)
        if code != ErrorCode.NONE:
            return _response(code, text)
    if not _only_validates(request):
        for update in updates:
            code, text = await _change(request, update)
            if code != ErrorCode.NONE:
                return _response(code, text)
    return _response(ErrorCode.NONE)


def _response(code: int, text: str = "", results: Sequence[_Result] = ()) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(
        error_code=code, error_message=text or None, results=list(results)
    )


def _only_validates(request: Request[UpdateFeaturesRequest]) -> bool:
    return request.version >= 1 and bool(request.message.validate_only)


def _error_of(request: Request[UpdateFeaturesRequest], update: _Update) -> tuple[int, str]:
    """Return the error that this broker finds in an update, or NONE. The controller checks every change again."""
    invalid, feature = ErrorCode.INVALID_UPDATE_VERSION, shortened(update.feature)
    level = update.max_version_level
    lowest, highest = SUPPORTED_FEATURES.get(update.feature, (0, 0))
    if not lowest <= level <= highest:
        return invalid, f"{feature} can have the levels {lowest} to {highest}, not {level}"
    if request.version >= 1 and update.upgrade_type not in _UPGRADE_TYPES:
        return (
            invalid,
            f"{feature}: upgrade type {update.upgrade_type} is unknown: use 1 (upgrade), 2 (safe"
            " downgrade) or 3 (unsafe downgrade)",
        )
    present = request.services.image.feature_level(update.feature)
    if level < present and not _allows_downgrade(request, update):
        return (
            invalid,
            f"{feature} is at level {present}: to lower it to {level}, request a downgrade",
        )
    return ErrorCode.NONE, ""


def _allows_downgrade(request: Request[UpdateFeaturesRequest], update: _Update) -> bool:
    return update.allow_downgrade if request.version == 0 else update.upgrade_type != _UPGRADE


async def _change(request: Request[UpdateFeaturesRequest], update: _Update) -> tuple[int, str]:
    command = pb.UpdateFeaturesRequest(
        name=update.feature,
        level=update.max_version_level,
        allow_downgrade=_allows_downgrade(request, update),
    )
    try:
        response = await change(
            request,
            "UpdateFeatures",
            command,
            pb.UpdateFeaturesResponse,
            timeout_ms=request.message.timeout_ms,
        )
    except ControllerUnavailable as unavailable:
        return unavailable.code, str(unavailable)
    return response.error_code, response.error_message
