"""UnregisterBroker: forgets a broker that will not come back (KIP-631)."""

from __future__ import annotations

from odradek_broker.kafka.forwarding import Unanswered, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message, UnregisterBrokerResponse
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb


@handles(ApiKey.UNREGISTER_BROKER)
async def unregister_broker(request: Request) -> Message:
    """By its id."""
    if not request.allows_cluster(Operation.ALTER):
        return _told(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "")
    asked = pb.UnregisterBrokerRequest(broker_id=request.message.broker_id)
    try:
        answer = await change(request, "UnregisterBroker", asked)
    except Unanswered as unanswered:
        return _told(unanswered.code, str(unanswered))
    return _told(answer.error_code, answer.error_message)


def _told(code: int, text: str) -> Message:
    return UnregisterBrokerResponse(error_code=code, error_message=text or None)
