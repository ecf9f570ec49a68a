"""One step of a connection's login, whether its token came in a SaslAuthenticate or in a raw frame."""

from __future__ import annotations

import asyncio

from odradek_broker.access.sasl import LoginFailed
from odradek_broker.kafka.request import ClientSession
from odradek_runtime.budget.client_budget import ClientBudget
from odradek_runtime.budget.refusals import shortened
from odradek_runtime.budget.shares import owner_of
from odradek_runtime.clock import monotonic_ms
from odradek_runtime.logs import event_log

_audit = event_log("odradek_broker.audit")


async def log_in(
    session: ClientSession, token: bytes, budget: ClientBudget, *, reauth_ms_max: int
) -> tuple[bytes, int]:
    """Return the response to a token, and how long the login lasts in ms once it is complete (else 0).

    An address has a share of the proofs that are checked at once, and the response to a failure is delayed the
    longer the more often it failed. Raises LoginFailed after it has logged the failure.
    """
    sasl = session.sasl
    assert sasl is not None, session
    try:
        async with budget.proofs.held(owner_of("", session.host), 1):
            response = await sasl.step(token)
    except LoginFailed as failed:
        now_s = monotonic_ms() / 1000
        user, reason = shortened(failed.user), shortened(str(failed))
        unlogged = budget.refusals.admit(owner_of("", session.host), (user, now_s), now_s)
        if unlogged is not None:
            more = {"not_logged_before": unlogged} if unlogged else {}
            _audit.warning("Login failed", host=session.host, user=user, reason=reason, **more)
        await asyncio.sleep(budget.failed_logins.failed(session.host, now_s) / 1000)
        raise
    if not sasl.is_complete:
        return response, 0
    session.takes_raw_tokens = False
    return response, session.logged_in(reauth_ms_max)
