"""FindCoordinator: the broker to ask about a group.

Transactions (key type 1) and share groups (2) are answered by an error that says that they are not
supported. Clients of version 4 and later take it as final and show its text. Those of before, librdkafka
among them, would ask again until they run out of time and then name no reason: they get this broker for a
coordinator, which refuses InitProducerId with the same code.
"""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.cluster.brokers import node_of
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_protocol.access import Operation
from odradek_protocol.identity import BrokerId
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import FindCoordinatorResponse, Message

GROUP: Final = 0
_TRANSACTION: Final = 1
_SHARE: Final = 2
_UNSUPPORTED: Final = {
    _TRANSACTION: "transactions are not supported: leave transactional.id away",
    _SHARE: "share groups are not supported: use a consumer group",
}
_BATCHED_FROM: Final = 4
_KEYS_MAX: Final = 10_000
_Coordinator: Final = FindCoordinatorResponse.Coordinator


@handles(ApiKey.FIND_COORDINATOR, needs=has_groups)
async def find_coordinator(request: Request) -> Message:
    """One key, or several from version 4 on."""
    message = request.message
    key_type = message.key_type if request.version >= 1 else GROUP
    if request.version >= _BATCHED_FROM:
        keys = message.coordinator_keys[:_KEYS_MAX]
        return FindCoordinatorResponse(
            coordinators=[
                _Coordinator(key=key, **await _find(request, key_type, key))
                async for key in request.in_turns(keys)
            ]
        )
    return FindCoordinatorResponse(**await _find(request, key_type, message.key))


async def _find(request: Request, key_type: int, key: str) -> dict[str, Any]:
    if key_type == _TRANSACTION and request.version < _BATCHED_FROM:
        return _found(request, request.services.broker_id)
    if key_type in _UNSUPPORTED:
        return _refused(ErrorCode.UNSUPPORTED_VERSION, _UNSUPPORTED[key_type])
    if key_type != GROUP:
        return _refused(ErrorCode.INVALID_REQUEST, f"there is no key type {key_type}")
    if not request.allows_group(Operation.DESCRIBE, key):
        return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    groups = coordinator(request)
    leader = groups.coordinator_of(key)
    if leader is None:
        await groups.ensure_topic()
        leader = groups.coordinator_of(key)
    return _found(request, None if leader is None else leader.broker_id)


def _found(request: Request, broker_id: BrokerId | None) -> dict[str, Any]:
    broker = None if broker_id is None else request.services.image.brokers.get(broker_id)
    node = None if broker is None or broker.fenced else node_of(broker, request.session.listener)
    if node is None:
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "node_id": node.broker_id,
        "host": node.host,
        "port": node.port,
    }


def _refused(code: ErrorCode, message: str | None = None) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message or code.name,
        "node_id": -1,
        "host": "",
        "port": -1,
    }
