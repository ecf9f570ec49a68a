"""One client's share of common resources is bounded, and other clients get their turn."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_runtime.budget.client_budget import ITEMS_MAX, ShareLines, decoded_bytes
from odradek_runtime.budget.loop_turns import ITERATIONS_BETWEEN, LoopTurns
from odradek_runtime.budget.refusals import (
    DELAY_MS,
    DELAY_MS_MAX,
    LINES_BURST,
    FailedLogins,
    RefusalLines,
    shortened,
)
from odradek_runtime.budget.shares import Shares, owner_of
from odradek_runtime.budget.turn_order import SLICE_S, TurnOrder
from odradek_runtime.tls import ANONYMOUS


def test_a_principal_pays_wherever_it_comes_from_and_an_address_where_there_is_none() -> None:
    assert owner_of("User:alice", "10.0.0.1") == owner_of("User:alice", "10.0.0.2")
    assert owner_of("User:alice", "10.0.0.1") != owner_of("User:bob", "10.0.0.1")
    assert owner_of(ANONYMOUS, "10.0.0.1") != owner_of(ANONYMOUS, "10.0.0.2")
    assert owner_of("", "10.0.0.1") == owner_of(ANONYMOUS, "10.0.0.1")


def test_an_owner_takes_its_share_and_leaves_the_rest() -> None:
    shares = Shares(total_max=100, owner_max=60)
    shares.take("a", 50)
    assert not shares.has_room("a", 20)
    assert "a holds 50 of 60 bytes" in str(shares.refusal("a", 20, "bytes"))
    assert shares.has_room("b", 50)
    assert not shares.has_room("b", 51)
    assert "50 of 100 bytes" in str(shares.refusal("b", 51, "bytes"))
    shares.give_back("a", 50)
    assert (shares.total, shares.owners) == (0, 0)


def test_one_thing_larger_than_a_share_is_taken_by_whoever_holds_nothing() -> None:
    shares = Shares(total_max=100, owner_max=60)
    assert shares.has_room("a", 90)
    shares.take("a", 1)
    assert not shares.has_room("a", 90)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 70)), max_size=40))
def test_no_pool_is_ever_overdrawn(wants: list[tuple[str, int]]) -> None:
    shares = Shares(total_max=100, owner_max=60)
    held: list[tuple[str, int]] = []
    for owner, amount in wants:
        if shares.has_room(owner, amount):
            shares.take(owner, amount)
            held.append((owner, amount))
        elif held:
            shares.give_back(*held.pop(0))
        assert shares.total == sum(amount for _, amount in held) <= 100
        assert shares.total == sum(map(shares.of, "abc"))


def served(order: TurnOrder[str], count: int, seconds: float = SLICE_S) -> str:
    """Return the owners in the order of their turns, where each piece of work takes this long and
    never is the last one.
    """
    turns = ""
    for _ in range(count):
        owner = order.next()
        assert owner is not None
        order.spent(owner, seconds)
        order.wait(owner, owner)
        turns += owner
    return turns


def test_owners_take_turns_however_many_requests_each_has() -> None:
    order: TurnOrder[str] = TurnOrder()
    for _ in range(100):
        order.wait("a", "a")
    order.wait("b", "b")
    assert served(order, 20).count("b") == 10


def test_longer_pieces_are_paid_for_with_fewer_turns() -> None:
    order: TurnOrder[str] = TurnOrder()
    order.wait("a", "a")
    order.wait("b", "b")
    turns = ""
    for _ in range(40):
        owner = order.next()
        assert owner is not None
        order.spent(owner, 3 * SLICE_S if owner == "a" else SLICE_S)
        order.wait(owner, owner)
        turns += owner
    assert turns.count("b") == pytest.approx(30, abs=2)


def test_who_rested_does_not_take_all_turns_afterwards() -> None:
    order: TurnOrder[str] = TurnOrder()
    order.wait("a", "a")
    served(order, 1000)
    order.wait("b", "b")
    assert served(order, 20).count("b") == pytest.approx(10, abs=1)


def test_the_order_forgets_owners_that_are_done() -> None:
    order: TurnOrder[str] = TurnOrder()
    for number in range(10_000):
        order.wait(f"owner {number}", "ticket")
        assert order.next() == "ticket"
        order.spent(f"owner {number}", SLICE_S)
    assert len(order) == 0
    assert order.owners < 200


async def test_others_run_between_the_pieces_of_all_long_work() -> None:
    """Fifty long requests run at once, and the event loop turns several times between two of their
    pieces.

    A short request takes several iterations of the loop, and must not wait for a piece in each.
    """
    turns = LoopTurns()
    iterations = 0
    pieces: list[int] = []

    async def others() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    async def long_request(owner: str) -> None:
        pace = turns.pace(owner)
        for _ in range(4):
            await pace.turn()
            pieces.append(iterations)

    counting = asyncio.create_task(others())
    async with asyncio.TaskGroup() as requests:
        for number in range(50):
            requests.create_task(long_request(f"owner {number % 5}"))
    counting.cancel()
    assert len(pieces) == 200
    gaps = [after - before for before, after in itertools.pairwise(pieces)]
    assert min(gaps) >= ITERATIONS_BETWEEN, gaps


async def test_a_request_that_was_cancelled_takes_no_turn() -> None:
    turns = LoopTurns()
    cancelled = asyncio.create_task(turns.turn("a"))
    waiting = asyncio.create_task(turns.turn("b"))
    await asyncio.sleep(0)
    cancelled.cancel()
    async with asyncio.timeout(10):
        await waiting


async def test_items_are_all_given_and_others_run_meanwhile() -> None:
    pace = LoopTurns().pace("a")
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    items: list[int] = []
    async for item in pace.items(range(10_000_000)):
        items.append(item)
        if ran.is_set():
            break
    assert items == list(range(len(items)))
    assert ran.is_set()


async def test_who_finds_no_room_waits_and_holds_up_nobody_else() -> None:
    lines = ShareLines(Shares(total_max=100, owner_max=60))
    done: list[str] = []
    release = asyncio.Event()

    async def holds(name: str, amount: int, until: asyncio.Event | None = None) -> None:
        async with lines.held(name[0], amount):
            if until is not None:
                await until.wait()
            done.append(name)

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(holds("a1", 60, release))
        second = tasks.create_task(holds("a2", 60))
        given_up = tasks.create_task(holds("a3", 60))
        other = tasks.create_task(holds("b1", 40))
        await other
        assert done == ["b1"]
        assert lines.waiting == 2
        given_up.cancel()
        release.set()
        await second
    assert done == ["b1", "a1", "a2"]
    assert (lines.shares.total, lines.waiting) == (0, 0)


async def test_more_than_a_share_waits_for_the_whole_share_and_not_for_ever() -> None:
    lines = ShareLines(Shares(total_max=100, owner_max=60))
    async with asyncio.timeout(10), lines.held("a", 1_000_000):
        assert lines.shares.total == 60


def test_a_long_request_counts_by_what_its_items_become() -> None:
    assert decoded_bytes(4096) > 100_000
    assert decoded_bytes(16 << 20) < (16 << 20) + 1000 * ITEMS_MAX


def test_failures_are_answered_later_and_later_and_are_forgotten() -> None:
    logins = FailedLogins()
    delays = [logins.failed("10.0.0.1", 0.0) for _ in range(30)]
    assert delays[0] == DELAY_MS
    assert delays == sorted(delays)
    assert delays[-1] == DELAY_MS_MAX
    assert logins.failed("10.0.0.2", 0.0) == DELAY_MS
    assert logins.failed("10.0.0.1", 100.0) == DELAY_MS


def test_a_flood_of_refusals_is_cut_and_counted() -> None:
    lines = RefusalLines()
    written = [lines.admit("a", f"nonsense {number}", 0.0) for number in range(1_000)]
    assert written.count(0) == LINES_BURST
    assert written[LINES_BURST:] == [None] * (1_000 - LINES_BURST)
    assert lines.admit("b", "secret", 0.0) == 0, "another owner's refusals are written"
    assert lines.admit("a", "secret", 1.0) == 1_000 - LINES_BURST
    assert lines.admit("a", "secret", 1.1) is None, "the same refusal is written once a minute"
    assert lines.admit("a", "secret", 100.0) == 0


def test_what_no_line_told_of_is_told_at_the_end() -> None:
    lines = RefusalLines()
    for number in range(150):
        lines.admit("a", number, 0.0)
    assert lines.take_unwritten(0.1) == [], "the flood may go on"
    assert lines.take_unwritten(5.0) == [("a", 50)]
    assert lines.take_unwritten(9.0) == []


def test_long_texts_are_cut_and_say_how_long_they_were() -> None:
    assert shortened("orders") == "orders"
    assert shortened("x" * 1000) == "x" * 256 + "... (1000 characters)"
