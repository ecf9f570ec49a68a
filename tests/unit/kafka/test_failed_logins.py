"""The response to a failed login is delayed, and the failure is logged, whether or not the user exists."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from odradek_broker.access.sasl import LoginFailed
from odradek_broker.kafka.request import ClientSession
from odradek_broker.kafka.requests.administration import sasl
from odradek_broker.listener_settings import KAFKA
from odradek_runtime.budget.client_budget import ClientBudget
from odradek_runtime.budget.refusals import DELAY_MS


class _Refusing:
    """A login that never succeeds; it counts how many run at once."""

    running = most = 0

    async def step(self, _: bytes) -> bytes:
        _Refusing.running += 1
        _Refusing.most = max(_Refusing.most, _Refusing.running)
        await asyncio.sleep(0)
        _Refusing.running -= 1
        raise LoginFailed("wrong password", user="x" * 10_000)


async def test_failures_wait_and_an_address_has_a_share_of_the_proofs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    budget = ClientBudget(proofs_max=8, proofs_owner_max=2)
    exchange: Any = _Refusing()
    original = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda s: original(0) if not s else wait(s))

    async def fails() -> None:
        session = ClientSession(listener=KAFKA, host="10.0.0.1", sasl=exchange)
        with pytest.raises(LoginFailed):
            await sasl.log_in(session, b"", budget, reauth_ms_max=0)

    with caplog.at_level(logging.WARNING):
        await asyncio.gather(*(fails() for _ in range(20)))
    assert len(waited) == 20
    assert min(waited) == DELAY_MS / 1000
    assert max(waited) > min(waited)
    assert _Refusing.most == 2
    assert budget.proofs.shares.total == 0
    assert all(len(record.odradek_fields["user"]) < 300 for record in caplog.records)  # type: ignore[attr-defined]
