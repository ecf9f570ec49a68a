"""Planted bugs: a patch disables one limit on what a client can use, and the test named for it must
then fail.

docs/mechanisms.md lists these bugs and those of the other parts.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest

from odradek_broker.kafka.connection_times import ConnectionTimes
from odradek_broker.kafka.frames import ArrivingBytes
from odradek_broker.kafka.requests.records import fetch_sessions
from odradek_broker.rpc import intake
from odradek_broker.rpc.unfinished import UnfinishedMessages, WatchedStream, _Connection
from odradek_runtime.budget.refusals import FailedLogins, RefusalLines
from odradek_runtime.budget.shares import Shares
from odradek_runtime.budget.turn_order import TurnOrder
from tests.unit.kafka import (
    test_fetch_sessions,
    test_large_frames_share,
)
from tests.unit.runtime import test_client_budget
from tests.unit.security import test_message_items, test_unfinished_messages

pytestmark = pytest.mark.interpreted

Patch = Callable[[pytest.MonkeyPatch], None]
Test = Callable[[], Awaitable[None] | None]


def shares_are_unlimited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shares, "has_room", lambda self, owner, amount: True)


def principals_of_one_address_share_a_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(test_client_budget, "owner_of", lambda principal, address: f"host {address}")


def turns_go_to_whoever_came_first(patch: pytest.MonkeyPatch) -> None:
    original = TurnOrder.wait

    def wait(self: TurnOrder[Any], owner: str, ticket: Any) -> None:
        original(self, "all", ticket)

    patch.setattr(TurnOrder, "wait", wait)


def long_pieces_cost_as_much_as_short_ones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TurnOrder, "spent", lambda self, owner, seconds: None)


def failed_logins_are_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FailedLogins, "failed", lambda self, address, now_s: 0)


def every_refusal_is_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RefusalLines, "admit", lambda self, owner, entry, now_s: 0)


def large_frames_are_always_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ArrivingBytes, "may_read", lambda self, connection: True)


def slow_frames_beyond_the_share_stay_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(test_large_frames_share.Sender, "give_up", lambda self, reason: None)


def a_byte_renews_a_frame(patch: pytest.MonkeyPatch) -> None:
    original = ConnectionTimes.frame_is_slow

    def frame_is_slow(
        self: ConnectionTimes, frame: int, held_bytes: int, now_ms: int, *, is_read: bool
    ) -> bool:
        if held_bytes > self._frame_bytes:
            self._frame_ms = 0
        return original(self, frame, held_bytes, now_ms, is_read=is_read)

    patch.setattr(ConnectionTimes, "frame_is_slow", frame_is_slow)


def fetch_sessions_have_no_bound_in_bytes(patch: pytest.MonkeyPatch) -> None:
    class Unbounded(Shares):
        def has_room(self, owner: str, amount: int) -> bool:
            return True

        def refusal(self, owner: str, amount: int, what: str) -> None:
            return None

    patch.setattr(fetch_sessions, "Shares", Unbounded)


def items_of_a_message_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    def never(message: Any, data: bytes, items_max: int) -> Generator[None, None, str | None]:
        yield from ()
        return None

    patch.setattr(intake, "refusal_steps", never)
    patch.setattr(test_message_items, "refusal_steps", never, raising=False)


def half_messages_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnfinishedMessages, "_excess", lambda self, now_s: [])


def bytes_of_streams_that_stay_open_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = _Connection.end_waiting

    def end_waiting(self: _Connection, now_s: float) -> list[WatchedStream]:
        ended = original(self, now_s)
        if ended:
            self.held_bytes = 0
        return ended

    patch.setattr(_Connection, "end_waiting", end_waiting)


def whole_messages_count_as_unfinished(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WatchedStream, "delivered", lambda self, size_bytes, now_s: None)


LIMITS: list[tuple[Patch, Test]] = [
    (shares_are_unlimited, test_client_budget.test_an_owner_takes_its_share_and_leaves_the_rest),
    (
        principals_of_one_address_share_a_share,
        test_client_budget.test_a_principal_pays_wherever_it_comes_from_and_an_address_where_there_is_none,
    ),
    (
        turns_go_to_whoever_came_first,
        test_client_budget.test_owners_take_turns_however_many_requests_each_has,
    ),
    (
        long_pieces_cost_as_much_as_short_ones,
        test_client_budget.test_longer_pieces_are_paid_for_with_fewer_turns,
    ),
    (
        failed_logins_are_answered_at_once,
        test_client_budget.test_failures_are_answered_later_and_later_and_are_forgotten,
    ),
    (every_refusal_is_written, test_client_budget.test_a_flood_of_refusals_is_cut_and_counted),
    (
        large_frames_are_always_read,
        test_large_frames_share.test_one_owner_leaves_room_for_the_frames_of_others,
    ),
    (
        slow_frames_beyond_the_share_stay_open,
        test_large_frames_share.test_frames_that_stop_in_the_middle_do_not_add_up,
    ),
    (
        a_byte_renews_a_frame,
        test_large_frames_share.test_a_byte_now_and_then_does_not_keep_a_frame_alive,
    ),
    (
        fetch_sessions_have_no_bound_in_bytes,
        test_fetch_sessions.test_one_owner_leaves_room_for_the_sessions_of_others,
    ),
    (
        items_of_a_message_are_not_counted,
        test_message_items.test_a_field_repeated_for_ever_is_refused,
    ),
    (
        half_messages_are_not_counted,
        test_unfinished_messages.test_streams_whose_messages_do_not_end_are_ended_and_others_are_not,
    ),
    (
        bytes_of_streams_that_stay_open_are_forgotten,
        test_unfinished_messages.test_an_old_stream_on_each_connection_does_not_hide_the_bytes_of_the_others,
    ),
    (
        whole_messages_count_as_unfinished,
        test_unfinished_messages.test_a_client_that_finishes_its_messages_holds_nothing_however_long_it_lives,
    ),
]


def run(test: Test) -> None:
    result = test()
    if inspect.isawaitable(result):

        async def awaited() -> None:
            async with asyncio.timeout(20):
                await result

        asyncio.run(awaited())


@pytest.mark.parametrize(("bug", "test"), LIMITS, ids=[bug.__name__ for bug, _ in LIMITS])
def test_the_named_test_catches_the_bug(
    monkeypatch: pytest.MonkeyPatch, bug: Patch, test: Test
) -> None:
    run(test)
    bug(monkeypatch)
    with pytest.raises((AssertionError, StopIteration, TimeoutError)):
        run(test)
