"""Concurrent look-ups of many resources: their number is bounded, results keep the order, and deleted resources are
left out.
"""

from __future__ import annotations

import asyncio

import pytest

from odradek.errors import UnknownTopic
from odradek_gateway.errors import RestError
from odradek_gateway.rest.v3.resources import AT_ONCE, ask_for_each


async def test_so_many_at_a_time_and_in_order() -> None:
    under_way = most = 0

    async def ask(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(number % 3):
            await asyncio.sleep(0)
        under_way -= 1
        return number

    assert await ask_for_each(range(100), ask) == list(range(100))
    assert most == AT_ONCE


async def test_what_was_deleted_meanwhile_is_left_out_and_other_errors_are_raised() -> None:
    async def ask(error: Exception | None) -> str:
        if error is not None:
            raise error
        return "here"

    gone: list[Exception | None] = [UnknownTopic("t"), None, RestError(404, 40405, "no group")]
    assert await ask_for_each(gone, ask) == ["here"]
    with pytest.raises(RestError, match="busy"):
        await ask_for_each([None, RestError(503, 50003, "busy")], ask)
