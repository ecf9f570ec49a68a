"""Kafka requests of transactions. `odradek_broker.transactions` decides about them, and `coordination` runs its
state machines.

They are served only while every broker of the cluster supports transactions (`has_transactions`).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.coordination.transaction_coordinator import (
    OutdatedConnection,
    TransactionCoordinator,
)
from odradek_broker.kafka.request import AnyRequest, CloseConnection
from odradek_broker.kafka.services import Services
from odradek_broker.transactions.identity import ProducerIdentity
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import ProducerEpoch, ProducerId
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode

T = TypeVar("T")
_FENCED_FROM: Final = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""For each request, the first version whose clients know PRODUCER_FENCED."""
_ABORTABLE_FROM: Final = {
    ApiKey.FIND_COORDINATOR: 5,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 5,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.END_TXN: 4,
}
"""For each request, the first version whose clients know TRANSACTION_ABORTABLE."""


def has_transactions(services: Services) -> bool:
    """Whether the cluster supports transactions now."""
    return services.transactions is not None and services.image.has_transactions


def coordinator(request: AnyRequest) -> TransactionCoordinator:
    """Return the broker's transaction coordinator; handlers that call this are served `while_=has_transactions`."""
    transactions = request.services.transactions
    assert transactions is not None, "this broker coordinates no transactions"
    return transactions


def may_write(request: AnyRequest, transactional_id: str) -> bool:
    """Whether the caller may use this transactional id."""
    return request.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)


def as_version(request: AnyRequest, code: ErrorCode) -> ErrorCode:
    """Return the code in a form that clients of this version know."""
    if code is ErrorCode.PRODUCER_FENCED and request.version < _FENCED_FROM.get(request.key, 0):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and request.version < _ABORTABLE_FROM.get(
        request.key, 0
    ):
        return ErrorCode.INVALID_TXN_STATE
    return code


async def decided(response: Awaitable[T]) -> T | ErrorCode:
    """Return the coordinator's response, or the error that says why it did not decide.

    Raises:
        CloseConnection: the client has sent a request for this transactional id over a later connection.
    """
    try:
        return await response
    except CoordinatorError as error:
        return error.code
    except OutdatedConnection as outdated:
        raise CloseConnection(str(outdated)) from None


def identity_of(producer_id: int, producer_epoch: int) -> ProducerIdentity:
    """Return the identity in a request."""
    return ProducerIdentity(ProducerId(producer_id), ProducerEpoch(producer_epoch))
