"""InitProducerId: the identity of an idempotent producer (KIP-98).

Every call returns a new id, even if the producer names the id that it has: only a transaction coordinator raises epochs
(KIP-360), and transactions are not supported. A transactional id is refused with UNSUPPORTED_VERSION, which says so.
The Java client takes that as final; librdkafka asks again until `init_transactions` times out, and then gives it as the
reason. The codes that librdkafka takes as final at once are all about rights, and would send people to their ACLs.
"""

from __future__ import annotations

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import InitProducerIdRequest, InitProducerIdResponse


@handles(InitProducerIdRequest)
async def init_producer_id(request: Request[InitProducerIdRequest]) -> InitProducerIdResponse:
    """Return a new producer id with epoch 0."""
    if request.message.transactional_id is not None:
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    if not request.allows_any_topic(Operation.WRITE) and not request.allows_cluster(
        Operation.IDEMPOTENT_WRITE
    ):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    code, producer_id = await request.services.producer_ids.next()
    if code is not ErrorCode.NONE:
        return _refused(code)
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0
    )


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
