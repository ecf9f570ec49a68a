"""SaslHandshake and SaslAuthenticate: the login of a connection.

The client chooses a mechanism, then sends tokens; the last one sets the connection's principal. After SaslHandshake 0
tokens come in frames without headers, and `kafka.connection` calls `log_in` itself. A failed login is reported without
the reason, and the connection is closed. With `connections.max.reauth.ms`, or a token that expires, the response says
how long the login lasts (KIP-368).
"""

from __future__ import annotations

from odradek_broker.access.sasl import LoginFailed, note_failed_login
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import ClientSession, Request
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from odradek_runtime.budget.client_budget import ClientBudget
from odradek_runtime.budget.shares import owner_of


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
    """Handle one step of the SASL exchange: a token of the client, and the broker's token in the response."""
    session = request.session
    sasl = session.sasl
    if sasl is None or not sasl.expects_token:
        request.closes_connection = True
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="a SaslHandshake must come first",
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


async def log_in(
    session: ClientSession, token: bytes, budget: ClientBudget, *, reauth_ms_max: int
) -> tuple[bytes, int]:
    """Return the response to a token, and how long the login lasts in ms once it is complete (else 0).

    The number of proofs that are checked at once is limited, with a share for each address. The more often an address
    has failed, the longer its next failure response is delayed. Raises LoginFailed after it has logged the failure.
    """
    sasl = session.sasl
    assert sasl is not None, session
    try:
        async with budget.proofs.held(owner_of("", session.host), 1):
            response = await sasl.step(token)
    except LoginFailed as failed:
        await note_failed_login(failed, session.host, budget)
        raise
    if not sasl.is_complete:
        return response, 0
    session.takes_raw_tokens = False
    return response, session.logged_in(reauth_ms_max)
