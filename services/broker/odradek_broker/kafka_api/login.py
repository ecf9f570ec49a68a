"""A step of the login of a connection, in whichever frames its token came (SaslAuthenticate, or raw)."""

from __future__ import annotations

from odradek_broker.kafka_api.request import ClientSession
from odradek_broker.security.sasl import LoginFailed
from odradek_runtime.logs import event_log

_audit = event_log("odradek_broker.audit")


async def log_in(session: ClientSession, token: bytes, *, reauth_ms_max: int) -> tuple[bytes, int]:
    """The answer to a token, and once the login is complete how long it holds, in ms (else 0).

    Raises LoginFailed, of which the audit log was told.
    """
    sasl = session.sasl
    assert sasl is not None, session
    try:
        answer = await sasl.step(token)
    except LoginFailed as failed:
        _audit.warning("Login failed", host=session.host, user=failed.user, reason=str(failed))
        raise
    if not sasl.is_complete:
        return answer, 0
    session.takes_raw_tokens = False
    return answer, session.logged_in(reauth_ms_max)
