"""InitProducerId: the identity of an idempotent producer (KIP-98).

Every call gives a new id, also to who names the one it has: next epochs are given out by a
transaction coordinator alone (KIP-360). There are no transactions: a transactional id is answered
by UNSUPPORTED_VERSION, which says so. The Java client takes it as final; librdkafka asks again until
`init_transactions` runs out of time and gives it as the reason then. The codes that librdkafka takes as
final at once are all about rights, and sent people to their ACLs.
"""

from __future__ import annotations

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import InitProducerIdResponse, Message


@handles(ApiKey.INIT_PRODUCER_ID)
async def init_producer_id(request: Request) -> Message:
    """A fresh id, with epoch 0."""
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


def _refused(code: ErrorCode) -> Message:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
