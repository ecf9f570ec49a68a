"""EndTxn: commits or aborts a transaction.

From version 5 on, the response contains the producer id and epoch for the next transaction (KIP-890).
"""

from __future__ import annotations

from typing import Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_broker.kafka.requests.transactions import (
    as_version,
    coordinator,
    decided,
    has_transactions,
    identity_of,
    may_write,
)
from odradek_broker.transactions.messages import EndTransaction
from odradek_broker.transactions.transaction import TransactionalId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import EndTxnRequest, EndTxnResponse

_EPOCH_PER_TRANSACTION_FROM: Final = 5


@handles(EndTxnRequest, while_=has_transactions)
async def end_txn(request: Request[EndTxnRequest]) -> EndTxnResponse:
    """Commit or abort the producer's transaction. The markers are written after the response."""
    message = request.message
    if not message.transactional_id:
        return _refused(request, ErrorCode.INVALID_REQUEST)
    if not may_write(request, message.transactional_id):
        return _refused(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    is_tv2 = request.version >= _EPOCH_PER_TRANSACTION_FROM
    ended = await decided(
        coordinator(request).end_transaction(
            EndTransaction(
                transactional_id=TransactionalId(message.transactional_id),
                identity=identity_of(message.producer_id, message.producer_epoch),
                is_commit=message.committed,
                is_tv2=is_tv2,
            ),
            connection=None if is_tv2 else request.session.connection_number,
        )
    )
    if isinstance(ended, ErrorCode):
        return _refused(request, ended)
    if ended.error is not ErrorCode.NONE or ended.next_identity is None:
        return _refused(request, ended.error)
    return EndTxnResponse(
        error_code=ErrorCode.NONE,
        producer_id=ended.next_identity.producer_id,
        producer_epoch=ended.next_identity.epoch,
    )


def _refused(request: AnyRequest, code: ErrorCode) -> EndTxnResponse:
    return EndTxnResponse(error_code=as_version(request, code), producer_id=-1, producer_epoch=-1)
