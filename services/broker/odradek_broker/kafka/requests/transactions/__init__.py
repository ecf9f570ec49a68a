"""Kafka requests about transactions.

`odradek_broker.transactions` has the state machines that decide about these requests, and
`odradek_broker.coordination` runs the state machines. The requests are served only while every broker of the cluster
supports transactions (`has_transactions`).
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
"""The first version of each request whose clients know the error code PRODUCER_FENCED."""
_ABORTABLE_FROM: Final = {
    ApiKey.FIND_COORDINATOR: 5,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 5,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.END_TXN: 4,
}
"""The first version of each request whose clients know the error code TRANSACTION_ABORTABLE."""


def has_transactions(services: Services) -> bool:
    """Return whether the cluster supports transactions at present."""
    return services.transactions is not None and services.image.has_transactions


def coordinator(request: AnyRequest) -> TransactionCoordinator:
    """Return the broker's transaction coordinator. Handlers that call this must declare `while_=has_transactions`."""
    transactions = request.services.transactions
    assert transactions is not None, "this broker coordinates no transactions"
    return transactions


def may_write(request: AnyRequest, transactional_id: str) -> bool:
    """Return whether the caller may use the transactional id. A refusal is written to the audit log."""
    return request.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)


def as_version(request: AnyRequest, code: ErrorCode) -> ErrorCode:
    """Return `code`, or an older error code instead if clients of the request's version do not know `code`."""
    if code is ErrorCode.PRODUCER_FENCED and request.version < _FENCED_FROM.get(request.key, 0):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and request.version < _ABORTABLE_FROM.get(
        request.key, 0
    ):
        return ErrorCode.INVALID_TXN_STATE
    return code


async def decided(response: Awaitable[T]) -> T | ErrorCode:
    """Return the coordinator's response, or an error code if the coordinator did not handle the request.

    Raises:
        CloseConnection: a request for the same transactional id has arrived on a later connection.
    """
    try:
        return await response
    except CoordinatorError as error:
        return error.code
    except OutdatedConnection as outdated:
        raise CloseConnection(str(outdated)) from None


def identity_of(producer_id: int, producer_epoch: int) -> ProducerIdentity:
    """Return the producer identity that a request contains."""
    return ProducerIdentity(ProducerId(producer_id), ProducerEpoch(producer_epoch))
