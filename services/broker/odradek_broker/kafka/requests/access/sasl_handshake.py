"""SaslHandshake: the client chooses how to log in. After version 0 tokens follow without headers."""

from __future__ import annotations

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message, SaslHandshakeResponse


@handles(ApiKey.SASL_HANDSHAKE)
def sasl_handshake(request: Request) -> Message:
    """What the listener offers, whether or not the client's choice is among it."""
    sasl = request.session.sasl
    if sasl is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    code = ErrorCode.NONE
    if not sasl.choose(request.message.mechanism):
        code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        request.closes_connection = True
    elif request.version == 0:
        request.session.takes_raw_tokens = True
    return SaslHandshakeResponse(error_code=code, mechanisms=list(sasl.mechanisms))
