"""DescribeClientQuotas: the quotas whose entities fit (KIP-546)."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DescribeClientQuotasResponse, Message
from odradek_protocol.metadata.image import QuotaEntity
from odradek_runtime.budget.refusals import shortened

_EXACTLY, _DEFAULT, _ANY = 0, 1, 2
_TYPES: Final = frozenset({"user", "client-id", "ip"})
_Entry: Final = DescribeClientQuotasResponse.EntryData
_Entity: Final = _Entry.EntityData
_Value: Final = _Entry.ValueData


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS)
async def describe_client_quotas(request: Request) -> Message:
    """`strict`: only entities of exactly the types named."""
    message = request.message
    if not request.allows_cluster(Operation.DESCRIBE_CONFIGS):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "")
    async for one in request.in_turns(message.components):
        if one.entity_type not in _TYPES:
            return _refused(
                ErrorCode.UNSUPPORTED_VERSION, f"no entity is a {shortened(one.entity_type)}"
            )
        if one.match_type not in (_EXACTLY, _DEFAULT, _ANY):
            return _refused(ErrorCode.INVALID_REQUEST, f"there is no match type {one.match_type}")
    return DescribeClientQuotasResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        entries=[
            _Entry(
                entity=[_Entity(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[_Value(key=key, value=value) for key, value in sorted(values.items())],
            )
            async for entity, values in request.in_turns(
                list(request.services.image.quotas.items())
            )
            if _fits(entity, message)
        ],
    )


def _fits(entity: QuotaEntity, message: Any) -> bool:
    parts = dict(entity)
    for one in message.components:
        if one.entity_type not in parts:
            return False
        name = parts[one.entity_type]
        if one.match_type == _EXACTLY and name != one.match:
            return False
        if one.match_type == _DEFAULT and name is not None:
            return False
    return not message.strict or len(parts) == len(message.components)


def _refused(code: ErrorCode, text: str) -> Message:
    return DescribeClientQuotasResponse(error_code=code, error_message=text or None, entries=None)
