"""SaslHandshake and SaslAuthenticate: the login of a connection.

The client chooses a mechanism and then sends tokens; after the last one, the connection has the client's principal.
After SaslHandshake version 0, tokens arrive in frames without headers, and `kafka.connection` calls `log_in` itself. A
failed login is reported without the reason, and the connection is closed. If the login will expire, because of
`connections.max.reauth.ms` or the lifetime of a token, the response contains the time until then (KIP-368).
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
    """Set the mechanism that the client chooses. The response lists all mechanisms of the listener, as in Kafka."""
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
    """Handle one step of the SASL exchange: the request has the client's token, and the response has the broker's
    token.
    """
    session = request.session
    sasl = session.sasl
    if sasl is None or not sasl.expects_token:
        request.closes_connection = True
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="no SASL mechanism was chosen: send SaslHandshake before SaslAuthenticate, and only to a"
            " listener that uses SASL",
            auth_bytes=b"",
        )
    try:
        token, lifetime_ms = await log_in(
            session,
            request.message.auth_bytes,
            request.services.budget,
            reauth_ms_max=request.services.settings.connections_max_reauth_ms,
        )
    except LoginFailed as failed:
        request.closes_connection = True
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=failed.told,
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
    """Return the response to a token, and how long the login lasts in ms. This time is 0 if the login is not complete
    or does not expire.

    The number of tokens that are checked at the same time is limited, with a share for each address. The response to a
    failed login is delayed, longer with each failure of the address.

    Raises:
        LoginFailed: the login failed. The failure is already in the audit log.
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
