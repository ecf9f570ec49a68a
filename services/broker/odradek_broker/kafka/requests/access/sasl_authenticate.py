"""SaslAuthenticate: one step of the login; the last one makes the connection's principal.

Who fails is told so, without the reason, and the connection is closed. With
`connections.max.reauth.ms`, or a token that ends, the answer says how long the login holds (KIP-368).
"""

from __future__ import annotations

from odradek_broker.access.sasl import LoginFailed
from odradek_broker.kafka.login import log_in
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message, SaslAuthenticateResponse


@handles(ApiKey.SASL_AUTHENTICATE)
async def sasl_authenticate(request: Request) -> Message:
    """A token in, a token out."""
    session = request.session
    sasl = session.sasl
    if sasl is None or not sasl.expects_token:
        request.closes_connection = True
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="a SaslHandshake comes first",
            auth_bytes=b"",
        )
    try:
        answer, lifetime_ms = await log_in(
            session,
            request.message.auth_bytes,
            request.services.budget,
            reauth_ms_max=request.services.settings.connections_max_reauth_ms,
        )
    except LoginFailed:
        request.closes_connection = True
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message="authentication failed",
            auth_bytes=b"",
        )
    return SaslAuthenticateResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        auth_bytes=answer,
        session_lifetime_ms=lifetime_ms,
    )
