"""InitProducerId: the identity of an idempotent or a transactional producer (KIP-98, KIP-360).

Without a transactional id, every request gets a new producer id, even if the request contains the producer's current
id, because only a transaction coordinator raises epochs. In a cluster that does not support transactions, a request
with a transactional id is refused with UNSUPPORTED_VERSION. The Java client reports this error at once. librdkafka
retries until `init_transactions` times out, and then reports the error. The error codes that librdkafka does not retry
are all about authorization, and would mislead users to check their ACLs.
"""

from __future__ import annotations

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
from odradek_broker.transactions.messages import InitProducer
from odradek_broker.transactions.transaction import TransactionalId
from odradek_protocol.access import Operation
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import InitProducerIdRequest, InitProducerIdResponse


@handles(InitProducerIdRequest)
async def init_producer_id(request: Request[InitProducerIdRequest]) -> InitProducerIdResponse:
    """Return a new producer id with epoch 0 or, for a transactional id, the id and epoch from the coordinator."""
    transactional_id = request.message.transactional_id
    if transactional_id is not None:
        return await _transactional(request, transactional_id)
    if not request.allows_any_topic(Operation.WRITE) and not request.allows_cluster(
        Operation.IDEMPOTENT_WRITE
    ):
        return _refused(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    code, producer_id = await request.services.producer_ids.next()
    if code is not ErrorCode.NONE:
        return _refused(request, code)
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0
    )


async def _transactional(
    request: Request[InitProducerIdRequest], transactional_id: str
) -> InitProducerIdResponse:
    message = request.message
    if not has_transactions(request.services):
        return _refused(request, ErrorCode.UNSUPPORTED_VERSION)
    if not transactional_id:
        return _refused(request, ErrorCode.INVALID_REQUEST)
    if not may_write(request, transactional_id):
        return _refused(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    identity = None
    if request.version >= 3 and (message.producer_id, message.producer_epoch) != (-1, -1):
        if message.producer_id < 0 or message.producer_epoch < 0:
            return _refused(request, ErrorCode.INVALID_REQUEST)
        identity = identity_of(message.producer_id, message.producer_epoch)
    initialized = await decided(
        coordinator(request).init_producer(
            InitProducer(
                transactional_id=TransactionalId(transactional_id),
                timeout_ms=message.transaction_timeout_ms,
                identity=identity,
            ),
            connection=request.session.connection_number,
        )
    )
    if isinstance(initialized, ErrorCode):
        return _refused(request, initialized)
    if initialized.error is not ErrorCode.NONE:
        return _refused(request, initialized.error)
    assert initialized.identity is not None, initialized
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE,
        producer_id=initialized.identity.producer_id,
        producer_epoch=initialized.identity.epoch,
    )


def _refused(request: AnyRequest, code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=as_version(request, code), producer_id=-1, producer_epoch=-1
    )
