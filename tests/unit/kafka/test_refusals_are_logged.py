"""Each refusal is in the audit log; many of them are combined into a count, and texts of clients
are cut.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from odradek_broker.access.authorizer import AclAuthorizer
from odradek_broker.kafka.listener import _log_unlogged_refusals
from odradek_broker.kafka.services import Services
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_runtime.budget.refusals import LINES_BURST
from odradek_runtime.clock import monotonic_ms
from tests.unit.kafka import fake_broker


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of each line of the audit log."""
    return [
        {"event": record.getMessage(), **record.odradek_fields}  # type: ignore[attr-defined]
        for record in caplog.records
        if record.name == "odradek_broker.audit"
    ]


def asks(served: Services, topic: str, *, principal: str = "User:mallory") -> None:
    """Check a caller's right to describe a topic, over a new connection."""
    request = fake_broker.request(served, ApiKey.METADATA, 12, None, principal=principal)
    assert not request.allows_topic(Operation.DESCRIBE, topic)


@pytest.fixture
def served() -> Services:
    return fake_broker.services(AclAuthorizer())


def test_nonsense_does_not_hide_what_is_asked_for_after_it(
    served: Services, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for number in range(LINES_BURST + 50):
            asks(served, f"nonsense-{number}")
        asks(served, "secret-plans", principal="User:eve")
    told = lines(caplog)
    assert len(told) <= LINES_BURST + 10
    assert told[-1]["resource"] == "secret-plans"
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for _, count in served.budget.refusals.take_unwritten(monotonic_ms() / 1000 + 60):
            assert 40 <= count <= 50
        _log_unlogged_refusals(served.budget)
    assert lines(caplog) == [], "told already"


def test_the_same_refusal_is_one_line_however_many_connections_ask(
    served: Services, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            asks(served, "secret-plans")
    assert len(lines(caplog)) == 1


def test_a_long_name_is_cut(served: Services, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        asks(served, "x" * 30_000)
    (told,) = lines(caplog)
    assert len(told["resource"]) < 300
    assert "30000 characters" in told["resource"]
