"""FindCoordinator: the broker that coordinates a group or a transactional id.

Share groups (key type 2) are not supported, and transactions (key type 1) only if transaction.version is high enough.
In these cases the response has UNSUPPORTED_VERSION and a text. Clients that send version 4 or later do not retry this
error, and show the text. Clients that send older versions, among them librdkafka, would retry until they time out and
then report no reason. Therefore such clients get this broker as the coordinator of transactions, and this broker then
refuses InitProducerId with UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from odradek_broker.coordination.placement import Placement
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_broker.kafka.requests.administration.brokers import node_of
from odradek_broker.kafka.requests.groups import coordinator, has_groups
from odradek_broker.kafka.requests.transactions import coordinator as transaction_coordinator
from odradek_broker.kafka.requests.transactions import has_transactions
from odradek_broker.transactions.transaction_shard import partition_key
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import FindCoordinatorRequest, FindCoordinatorResponse

GROUP: Final = 0
_TRANSACTION: Final = 1
_SHARE: Final = 2
_UNSUPPORTED: Final = {
    _TRANSACTION: "the cluster does not support transactions: raise the feature transaction.version, or do not"
    " set transactional.id",
    _SHARE: "share groups are not supported: use a consumer group",
}
_BATCHED_FROM: Final = 4
_Coordinator = FindCoordinatorResponse.Coordinator


class _Location(NamedTuple):
    """The broker that is the coordinator, or the error and its text if there is none."""

    error: ErrorCode
    text: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1


@handles(FindCoordinatorRequest, needs=has_groups)
async def find_coordinator(request: Request[FindCoordinatorRequest]) -> FindCoordinatorResponse:
    """Find the coordinator of one key or, from version 4 on, of several keys."""
    message = request.message
    key_type = message.key_type if request.version >= 1 else GROUP
    if request.version >= _BATCHED_FROM:
        return FindCoordinatorResponse(
            coordinators=[
                _Coordinator(
                    key=key,
                    error_code=location.error,
                    error_message=location.text,
                    node_id=location.node_id,
                    host=location.host,
                    port=location.port,
                )
                async for key in request.in_turns(message.coordinator_keys)
                for location in [await _find(request, key_type, key)]
            ]
        )
    location = await _find(request, key_type, message.key)
    return FindCoordinatorResponse(
        error_code=location.error,
        error_message=location.text,
        node_id=location.node_id,
        host=location.host,
        port=location.port,
    )


async def _find(request: AnyRequest, key_type: int, key: str) -> _Location:
    if key_type == _TRANSACTION and has_transactions(request.services):
        return await _find_transactional(request, key)
    if key_type == _TRANSACTION and request.version < _BATCHED_FROM:
        return _node(request, request.services.broker_id)
    if key_type in _UNSUPPORTED:
        return _refused(ErrorCode.UNSUPPORTED_VERSION, _UNSUPPORTED[key_type])
    if key_type != GROUP:
        return _refused(ErrorCode.INVALID_REQUEST, f"key type {key_type} is unknown")
    if not request.allows_group(Operation.DESCRIBE, key):
        return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return await _leader(request, coordinator(request).placement, key)


async def _find_transactional(request: AnyRequest, key: str) -> _Location:
    if not key:
        return _refused(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    if not request.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key):
        return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    placement = transaction_coordinator(request).placement
    return await _leader(request, placement, partition_key(key))


async def _leader(request: AnyRequest, placement: Placement, name: str) -> _Location:
    leader = placement.coordinator_of(name)
    if leader is None:
        await placement.ensure_topic()
        leader = placement.coordinator_of(name)
    return _node(request, None if leader is None else leader.broker_id)


def _node(request: AnyRequest, broker_id: BrokerId | None) -> _Location:
    broker = None if broker_id is None else request.services.image.brokers.get(broker_id)
    node = None if broker is None or broker.fenced else node_of(broker, request.session.listener)
    if node is None:
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _Location(ErrorCode.NONE, None, node.broker_id, node.host, node.port)


def _refused(code: ErrorCode, text: str | None = None) -> _Location:
    return _Location(code, text or code.name)
