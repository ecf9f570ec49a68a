"""SaslHandshake and SaslAuthenticate: the login of a connection.

The client chooses a mechanism, then sends tokens; the last one sets the connection's principal. After SaslHandshake 0
tokens come in frames without headers (`kafka.connection`). A failed login is reported without the reason, and the
connection is closed. With `connections.max.reauth.ms`, or a token that expires, the response says how long the login
lasts (KIP-368).
"""

from __future__ import annotations

from odradek_broker.access.sasl import LoginFailed
from odradek_broker.kafka.login import log_in
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


@handles(SaslHandshakeRequest)
def sasl_handshake(request: Request[SaslHandshakeRequest]) -> SaslHandshakeResponse:
    """List the listener's mechanisms, whether or not the client's choice is one of them."""
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


@handles(SaslAuthenticateRequest)
async def sasl_authenticate(request: Request[SaslAuthenticateRequest]) -> SaslAuthenticateResponse:
    """Take one step of the exchange: the client's token in, the broker's token out."""
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
        token, lifetime_ms = await log_in(
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
        auth_bytes=token,
        session_lifetime_ms=lifetime_ms,
    )
