"""The table of error codes: its properties are consistent with each other."""

from __future__ import annotations

import pytest

from odradek_protocol.kafka.error_codes import ErrorCode


@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.name)
def test_a_moved_leader_makes_metadata_stale_and_that_is_worth_a_retry(code: ErrorCode) -> None:
    assert not code.leader_moved or code.metadata_is_stale
    assert not code.metadata_is_stale or code.retriable
