"""AlterClientQuotas and DescribeClientQuotas: quotas of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

from typing import Final

from odradek_broker.kafka.forwarding import ControllerUnavailable, ask_controller, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from odradek_protocol.metadata.image import QuotaEntity
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_runtime.budget.refusals import shortened

_EXACT, _DEFAULT, _ANY = 0, 1, 2
_ENTITY_TYPES: Final = frozenset({"user", "client-id", "ip"})
_Alteration = AlterClientQuotasRequest.EntryData
_Operation = _Alteration.OpData
_Altered = AlterClientQuotasResponse.EntryData
_AlteredEntity = _Altered.EntityData
_Described = DescribeClientQuotasResponse.EntryData
_DescribedEntity = _Described.EntityData
_Value = _Described.ValueData


async def _refuse_alterations(
    request: Request[AlterClientQuotasRequest], code: ErrorCode
) -> AlterClientQuotasResponse:
    return await _altered(request, [(code, "")] * len(request.message.entries))


@handles(AlterClientQuotasRequest, refuse=_refuse_alterations)
async def alter_client_quotas(
    request: Request[AlterClientQuotasRequest],
) -> AlterClientQuotasResponse:
    """Set and remove quotas. Each entity has one result, with the first error of its quotas."""
    message = request.message
    outcomes: list[tuple[int, str]] = [(ErrorCode.NONE, "")] * len(message.entries)
    owners: list[int] = []
    command = pb.AlterQuotasRequest(validate_only=message.validate_only)
    async for number, entry in request.in_turns(enumerate(message.entries)):
        # In the controller's message each quota repeats the entity, so the length of an entity must be bounded.
        if len(entry.entity) > len(_ENTITY_TYPES):
            text = f"an entity has at most {len(_ENTITY_TYPES)} parts, not {len(entry.entity)}"
            outcomes[number] = (ErrorCode.INVALID_REQUEST, text)
            continue
        async for operation in request.in_turns(entry.ops):
            owners.append(number)
            command.entries.append(_quota(entry, operation))
    if owners:
        ask = ask_controller if message.validate_only else change
        try:
            response = await ask(request, "AlterQuotas", command, pb.AlterQuotasResponse)
            decided = [(result.error_code, result.error_message) for result in response.results]
        except ControllerUnavailable as unavailable:
            decided = [(unavailable.code, str(unavailable))] * len(owners)
        for number, outcome in zip(owners, decided, strict=True):
            if outcomes[number][0] == ErrorCode.NONE:
                outcomes[number] = outcome
    return await _altered(request, outcomes)


async def _altered(
    request: Request[AlterClientQuotasRequest], outcomes: list[tuple[int, str]]
) -> AlterClientQuotasResponse:
    pairs = zip(request.message.entries, outcomes, strict=True)
    return AlterClientQuotasResponse(
        entries=[
            _Altered(
                error_code=code,
                error_message=text or None,
                entity=[
                    _AlteredEntity(entity_type=part.entity_type, entity_name=part.entity_name)
                    async for part in request.in_turns(entry.entity)
                ],
            )
            async for entry, (code, text) in request.in_turns(pairs)
        ]
    )


def _quota(entry: _Alteration, operation: _Operation) -> pb.QuotaEntry:
    return pb.QuotaEntry(
        entity=[
            pb.QuotaEntityPart(type=part.entity_type, name=part.entity_name)
            for part in entry.entity
        ],
        key=operation.key,
        value=None if operation.remove else operation.value,
    )


def _refuse_description(_request: AnyRequest, code: ErrorCode) -> DescribeClientQuotasResponse:
    return _no_quotas(code)


@handles(DescribeClientQuotasRequest, refuse=_refuse_description)
async def describe_client_quotas(
    request: Request[DescribeClientQuotasRequest],
) -> DescribeClientQuotasResponse:
    """List the quotas of matching entities. With `strict`, an entity must have exactly the types in the request."""
    message = request.message
    async for component in request.in_turns(message.components):
        if component.entity_type not in _ENTITY_TYPES:
            text = f"entity type {shortened(component.entity_type)} is unknown"
            return _no_quotas(ErrorCode.UNSUPPORTED_VERSION, text)
        if component.match_type not in (_EXACT, _DEFAULT, _ANY):
            text = f"match type {component.match_type} is unknown"
            return _no_quotas(ErrorCode.INVALID_REQUEST, text)
    quotas = list(request.services.image.quotas.items())
    return DescribeClientQuotasResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        entries=[
            _Described(
                entity=[
                    _DescribedEntity(entity_type=kind, entity_name=name) for kind, name in entity
                ],
                values=[_Value(key=key, value=value) for key, value in sorted(values.items())],
            )
            async for entity, values in request.in_turns(quotas)
            if _matches(entity, message)
        ],
    )


def _matches(entity: QuotaEntity, message: DescribeClientQuotasRequest) -> bool:
    parts = dict(entity)
    for component in message.components:
        if component.entity_type not in parts:
            return False
        name = parts[component.entity_type]
        if component.match_type == _EXACT and name != component.match:
            return False
        if component.match_type == _DEFAULT and name is not None:
            return False
    return not message.strict or len(parts) == len(message.components)


def _no_quotas(code: ErrorCode, text: str = "") -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=text or None, entries=None)
