"""How commands move partitions: they print a plan, ask for confirmation, start the moves, and show the progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from odradek.cli.connection import with_client
from odradek.cli.output import (
    OutputFormat,
    confirm,
    counted,
    fail,
    fail_on_errors,
    print_rows,
    readable_bytes,
    say,
)

if TYPE_CHECKING:
    from odradek.admin.descriptions import Reassignment
    from odradek.client import Client
    from odradek.partitions import TopicPartition

POLL_S: Final = 1.0
LAG_S_MAX: Final = 5.0
"""How long the metadata of a broker may lag behind the controller's."""
Wait = Annotated[
    bool,
    typer.Option("--wait", help="Wait until the moves have ended, and show their progress."),
]


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The partitions to move, with their replicas before and after the move. The first replica is the preferred
    leader.
    """

    before: Mapping[TopicPartition, tuple[int, ...]]
    after: Mapping[TopicPartition, tuple[int, ...]]

    @property
    def copies(self) -> int:
        """The number of replicas whose data must be copied."""
        return sum(len(set(self.after[name]) - set(self.before[name])) for name in self.after)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each partition, for `print_rows`."""
        return [
            {
                "topic": name.topic,
                "partition": name.partition,
                "from": list(self.before[name]),
                "to": list(replicas),
            }
            for name, replicas in sorted(self.after.items())
        ]


def move_partitions(
    bootstrap: str,
    make_plan: Callable[[Client], Awaitable[MovePlan]],
    *,
    dry_run: bool,
    is_confirmed: bool,
    wait: bool,
    output: OutputFormat,
    empty: str,
    keep_replication_factor: bool = False,
    elects_leaders: bool = False,
) -> None:
    """Print a plan, ask for confirmation, start the moves, and wait for their end if `wait` is set. `empty` is printed
    if the plan moves nothing. With `elects_leaders`, the first replicas become the leaders after that wait. With
    `keep_replication_factor`, the cluster refuses moves that would change the number of replicas, for example because
    another move began after the plan was made.
    """
    plan = with_client(bootstrap, make_plan)
    print_rows(plan.rows(), output, empty=empty)
    if dry_run and plan.after:
        say("dry run: nothing was moved", is_error=True)
    if dry_run or not plan.after:
        return
    confirm(
        f"Move {counted(len(plan.after), 'partition')}, copying {counted(plan.copies, 'replica')}?",
        is_confirmed=is_confirmed,
    )

    async def start(client: Client) -> None:
        outcomes = await client.admin.reassign_partitions(
            plan.after, keep_replication_factor=keep_replication_factor
        )
        fail_on_errors(outcome.error for outcome in outcomes)

    with_client(bootstrap, start)
    if wait:
        wait_for_moves(bootstrap, plan.after)
        if elects_leaders:
            with_client(bootstrap, lambda client: _elect(client, plan))
    elif sys.stderr.isatty():
        leaders = "; afterwards, `odradek partition elect` balances the leaders" * elects_leaders
        say(f"`odradek partition moves` shows the progress{leaders}", is_error=True)


async def _elect(client: Client, plan: MovePlan) -> None:
    """Make the first replica of each moved partition its leader."""
    outcomes = await client.admin.elect_leaders(plan.after)
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    if failed:
        fail(
            f"{counted(len(failed), 'partition')} kept another leader than the first replica ({failed[0]});"
            " `odradek partition elect` tries again"
        )


def wait_for_moves(bootstrap: str, expected: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    """Wait until no move of these partitions is in progress, and show the progress on a terminal.

    If a partition then has other replicas than `expected`, its move was cancelled or replaced, and the command ends
    with an error. The broker that responds may not know of the moves yet, so the
    replicas must differ for LAG_S_MAX.
    """
    import asyncio

    is_terminal = sys.stderr.isatty()

    def show(text: str) -> None:
        if is_terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    async def work(client: Client) -> tuple[MoveProgress, list[str]]:
        progress = MoveProgress(expected, time.monotonic())
        differ_since_s: float | None = None
        while True:
            moves = [
                move
                for move in await client.admin.list_reassignments(include_sizes=True)
                if move.partition in expected
            ]
            progress.update(moves, time.monotonic())
            if not moves:
                lost = await _lost_moves(client, expected)
                now_s = time.monotonic()
                differ_since_s = now_s if differ_since_s is None else differ_since_s
                if not lost or now_s - differ_since_s > LAG_S_MAX:
                    return progress, lost
            else:
                differ_since_s = None
            show(progress.text())
            await asyncio.sleep(POLL_S)

    if is_terminal:
        say(
            "waiting for the moves to end; Ctrl-C stops the waiting, and the moves continue",
            is_error=True,
        )
    try:
        progress, lost = with_client(bootstrap, work, is_quick=False)
    finally:
        show("")
    if lost:
        fail(
            f"these moves were cancelled or replaced by other moves: {', '.join(lost)};"
            " `odradek partition moves` shows the moves in progress"
        )
    say(progress.summary(), is_error=True)


async def _lost_moves(
    client: Client, expected: Mapping[TopicPartition, tuple[int, ...]]
) -> list[str]:
    """Return the names of the partitions that have other replicas than expected."""
    replicas = {
        (topic.name, partition.partition): partition.replicas
        for topic in await client.admin.list_topics(include_internal=True)
        for partition in topic.partitions
    }
    return [
        str(name)
        for name, expected_replicas in sorted(expected.items())
        if set(replicas.get(name, ())) != set(expected_replicas)
    ]


class MoveProgress:
    """Computes the progress of a set of moves from the list of moves that are still in progress."""

    def __init__(self, names: Iterable[TopicPartition], now_s: float) -> None:
        self._names = set(names)
        self._in_progress = set(self._names)
        self._sizes: dict[TopicPartition, tuple[int, int]] = {}
        """By partition: the bytes copied so far, and the bytes to copy in total."""
        self._started_s = self._now_s = now_s
        self._copied_at_start: int | None = None

    def update(self, moves: Iterable[Reassignment], now_s: float) -> None:
        """Update the progress. `moves` are all moves that are in progress. A move that is not in `moves` has ended."""
        self._now_s = now_s
        self._in_progress.clear()
        for move in moves:
            self._in_progress.add(move.partition)
            if move.copied_bytes is not None and move.total_bytes is not None:
                self._sizes[move.partition] = (move.copied_bytes, move.total_bytes)
        for name in self._sizes.keys() - self._in_progress:
            total = self._sizes[name][1]
            self._sizes[name] = (total, total)
        if self._copied_at_start is None:
            self._copied_at_start = self._copied

    @property
    def _copied(self) -> int:
        return sum(copied for copied, _ in self._sizes.values())

    def text(self) -> str:
        """Return the progress in one line: partitions moved, bytes copied, the rate, and the remaining time at that
        rate.
        """
        moved = len(self._names) - len(self._in_progress)
        total = sum(total for _, total in self._sizes.values())
        words = [f"{moved} of {counted(len(self._names), 'partition')} moved"]
        if total:
            words.append(f"{readable_bytes(self._copied)} of {readable_bytes(total)} copied")
        elapsed_s = self._now_s - self._started_s
        rate = (self._copied - (self._copied_at_start or 0)) / elapsed_s if elapsed_s > 0 else 0.0
        if rate > 0:
            remaining_s = (total - self._copied) / rate
            words += [f"{readable_bytes(rate)}/s", f"about {remaining_s:.0f} s left"]
        return ", ".join(words)

    def summary(self) -> str:
        """Return a one-line summary, for after the last move has ended."""
        elapsed_s = self._now_s - self._started_s
        copied = self._copied - (self._copied_at_start or 0)
        return (
            f"{counted(len(self._names), 'partition')} moved in {elapsed_s:.1f} s,"
            f" {readable_bytes(copied)} copied"
        )
