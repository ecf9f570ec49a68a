"""AlterClientQuotas: sets and removes quotas of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.kafka.forwarding import Unanswered, ask_controller, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import AlterClientQuotasResponse, Message
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

_Entry: Final = AlterClientQuotasResponse.EntryData
_Entity: Final = _Entry.EntityData


@handles(ApiKey.ALTER_CLIENT_QUOTAS)
async def alter_client_quotas(request: Request) -> Message:
    """A result for each entity; the first thing wrong with one of its quotas is told."""
    message = request.message
    may = request.allows_cluster(Operation.ALTER_CONFIGS)
    told: list[tuple[int, str]] = [
        (ErrorCode.NONE if may else ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "")
        for _ in message.entries
    ]
    owners: list[int] = []
    entries: list[pb.QuotaEntry] = []
    if may:
        async for number, entry in request.in_turns(enumerate(message.entries)):
            async for one in request.in_turns(entry.ops):
                owners.append(number)
                entries.append(_quota(entry, one))
    if entries:
        asked = pb.AlterQuotasRequest(entries=entries, validate_only=message.validate_only)
        ask = ask_controller if message.validate_only else change
        try:
            answer = await ask(request, "AlterQuotas", asked)
            answers = [(one.error_code, one.error_message) for one in answer.results]
        except Unanswered as unanswered:
            answers = [(unanswered.code, str(unanswered))] * len(entries)
        for number, outcome in zip(owners, answers, strict=True):
            if told[number][0] == ErrorCode.NONE:
                told[number] = outcome
    return AlterClientQuotasResponse(
        entries=[
            _Entry(
                error_code=code,
                error_message=text or None,
                entity=[
                    _Entity(entity_type=part.entity_type, entity_name=part.entity_name)
                    async for part in request.in_turns(entry.entity)
                ],
            )
            async for entry, (code, text) in request.in_turns(
                zip(message.entries, told, strict=True)
            )
        ]
    )


def _quota(entry: Any, one: Any) -> pb.QuotaEntry:
    return pb.QuotaEntry(
        entity=[
            pb.QuotaEntityPart(type=part.entity_type, name=part.entity_name)
            for part in entry.entity
        ],
        key=one.key,
        value=None if one.remove else one.value,
    )
