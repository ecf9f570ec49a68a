"""Quotas of users, client ids and addresses (KIP-546): stored here, obeyed by the brokers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from odradek_metadata_quorum.controller.decision import GOOD, Outcome
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import QuotaEntity
from odradek_protocol.metadata.records import ClientQuota

_CLIENT_KEYS: Final[tuple[str, ...]] = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
_ADDRESS_KEYS: Final[tuple[str, ...]] = ("connection_creation_rate",)
_CLIENT_TYPES: Final = frozenset({"user", "client-id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaAlteration:
    """A quota to set, or (None) to remove. A part's name None is the default of its type."""

    entity: QuotaEntity
    key: str
    value: float | None


def alter_quotas(
    work: Workspace, alterations: tuple[QuotaAlteration, ...], *, validate_only: bool = False
) -> tuple[Outcome, ...]:
    """Set and remove; each for itself, in the order of the request."""
    outcomes = []
    for alteration in alterations:
        refusal = _refusal(alteration)
        if refusal is not None:
            outcomes.append(Outcome(error=ErrorCode.INVALID_REQUEST, message=refusal))
            continue
        entity = tuple(sorted(alteration.entity, key=lambda part: part[0]))
        present = work.image.quotas.get(entity, {}).get(alteration.key)
        if not validate_only and present != alteration.value:
            work.write(ClientQuota(entity=entity, key=alteration.key, value=alteration.value))
        outcomes.append(GOOD)
    return tuple(outcomes)


def _refusal(alteration: QuotaAlteration) -> str | None:
    types = [kind for kind, _ in alteration.entity]
    if not types or len(set(types)) != len(types):
        return "a quota is for a user, a client-id, both, or an ip"
    if any(name is not None and not 0 < len(name) <= 255 for _, name in alteration.entity):
        return "a name has 1 to 255 characters; leave it out for the default"
    if set(types) <= _CLIENT_TYPES:
        keys = _CLIENT_KEYS
    elif types == ["ip"]:
        keys = _ADDRESS_KEYS
    else:
        return f"no quota is for {' and '.join(types)} together"
    if alteration.key not in keys:
        return f"{alteration.key} is no quota of {' and '.join(types)}: {', '.join(keys)} are"
    value = alteration.value
    if value is not None and not (math.isfinite(value) and value > 0):
        return f"{alteration.key}: {value} is not above 0; leave it out to remove the quota"
    return None
