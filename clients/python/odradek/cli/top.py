"""`odradek top`: a live view of brokers, topics and groups. Rates are computed from two reads of the cluster's
state.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from odradek.cli.connection import PATIENCE_S, connect_s_max, with_client
from odradek.cli.group import GROUPS_AT_ONCE, known_lag
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Output,
    OutputFormat,
    console,
    print_facts,
    printable,
    readable_bytes,
    say,
    table_of,
)

if TYPE_CHECKING:
    from odradek.admin.descriptions import (
        ClusterDescription,
        GroupDescription,
        LogDirDescription,
        QuorumDescription,
        TopicDescription,
    )
    from odradek.client import Client
    from odradek.partitions import TopicPartition

SECTIONS: Final = ("brokers", "topics", "groups")
SECTION_LINES: Final = 3
"""The lines of a section before its rows: one empty line, and two lines of column headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The state of the cluster at one moment. A field is empty or None if the process that should report it did not
    respond.
    """

    at_s: float
    quorum: QuorumDescription | None = None
    cluster: ClusterDescription | None = None
    topics: Sequence[TopicDescription] = ()
    directories: Sequence[LogDirDescription] = ()
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    groups: Mapping[str, tuple[GroupDescription | None, Mapping[TopicPartition, int] | None]] = (
        field(default_factory=dict)
    )
    problem: str = ""
    """That there is no active controller, or else the first error of a request; empty if there is neither."""


def top(
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Print the state once, with rates over one interval, and exit."
        ),
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two updates.")
    ] = 2.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show brokers, topics and groups with their rates, live.

    Press q or Ctrl-C to quit. With -o json, one line of JSON is printed every interval. Without a terminal, the tables
    are printed one after another.
    """
    import asyncio

    async def work(client: Client) -> None:
        client.admin_timeout_s = connect_s_max()
        if output is OutputFormat.TABLE and not once and sys.stdout.isatty():
            with Screen() as screen:
                await _show(client, screen, interval)
            return
        previous = await _looked(client)
        while True:
            await asyncio.sleep(interval)
            present = await _looked(client)
            facts = snapshot(previous, present)
            previous = present
            if output is OutputFormat.JSON:
                print_facts(facts, output)
                sys.stdout.flush()
            else:
                console().print(_view(facts))
            if once:
                return

    with_client(bootstrap, work, is_quick=False)


async def _looked(client: Client) -> Look:
    """Return the result of `look`. After PATIENCE_S without a result, print what the client waits for."""
    import asyncio

    looking = asyncio.ensure_future(look(client))
    try:
        await asyncio.wait([looking], timeout=PATIENCE_S)
        if not looking.done():
            say(f"odradek: waiting: {client.explain_waiting()}", is_error=True)
        return await looking
    finally:
        looking.cancel()


async def _show(client: Client, screen: Screen, interval_s: float) -> None:
    """Show the cluster on the terminal until the user quits. The first view appears immediately, without rates."""
    import asyncio

    previous: Look | None = None
    while True:
        looking = asyncio.ensure_future(look(client))
        try:
            await screen.wait_for(looking, PATIENCE_S)
            if not looking.done():
                screen.show(note=f"waiting: {client.explain_waiting()}")
                await screen.wait_for(looking, None)
            if screen.is_closing:
                return
            present = looking.result()
        finally:
            looking.cancel()
        screen.show(snapshot(previous, present), note=present.problem)
        previous = present
        await screen.wait_for(None, interval_s)
        if screen.is_closing:
            return


class Screen:
    """The terminal of `odradek top`: draws views on its alternate screen, and reads keys. A running event loop is
    required.

    When the size of the terminal changes, the last view is drawn again.
    """

    def __init__(self) -> None:
        from rich.live import Live

        self.is_closing = False
        self._live = Live(console=console(), screen=True, auto_refresh=False)
        self._facts: Mapping[str, Any] | None = None
        self._note = "reading the state of the cluster"
        self._restore: list[Callable[[], object]] = []
        self._wake: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        import asyncio

        self._live.start()
        self._restore.append(self._live.stop)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self.show)
        self._restore.append(lambda: loop.remove_signal_handler(signal.SIGWINCH))
        self._read_keys(loop)
        self.show()
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._restore:
            self._restore.pop()()

    def _read_keys(self, loop: Any) -> None:
        """Read single keys. If standard input is not the terminal, or the command runs in the background, no keys are
        read.
        """
        import termios
        import tty

        if sys.stdin is None:
            return
        keyboard = sys.stdin.fileno()
        if not os.isatty(keyboard) or os.tcgetpgrp(keyboard) != os.getpgrp():
            return
        modes = termios.tcgetattr(keyboard)
        tty.setcbreak(keyboard, termios.TCSADRAIN)
        self._restore.append(lambda: termios.tcsetattr(keyboard, termios.TCSADRAIN, modes))

        def read() -> None:
            keys = os.read(keyboard, 1024)
            if not keys or b"q" in keys.lower():
                loop.remove_reader(keyboard)
                self.is_closing = True
                self._wake()

        loop.add_reader(keyboard, read)
        self._restore.append(lambda: loop.remove_reader(keyboard))

    def show(self, facts: Mapping[str, Any] | None = None, *, note: str | None = None) -> None:
        """Draw the view of `facts`; None draws the last facts again.

        `note` is the line below the view: what the client waits for, or a problem. None keeps the last note, and ""
        removes it.
        """
        self._facts = facts if facts is not None else self._facts
        self._note = note if note is not None else self._note
        height = self._live.console.height
        self._live.update(_view(self._facts, height=height, note=self._note), refresh=True)

    async def wait_for(self, work: Any, timeout_s: float | None) -> None:
        """Wait until the future `work` is done, the timeout has passed, or the user quits. `work` is not cancelled."""
        import asyncio

        quitting = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not quitting.done():
                quitting.set_result(None)

        self._wake = wake
        if self.is_closing:
            return
        waiting = [quitting] if work is None else [quitting, work]
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


async def look(client: Client) -> Look:
    """Read the state of the whole cluster. The state of processes that do not respond is left out.

    Without an active controller, leaders and coordinators do not serve reads. In this case the function sends them no
    requests, because each request would end only at its timeout.
    """
    import asyncio

    from odradek.errors import NoActiveController, OdradekError

    admin = client.admin

    problems: list[OdradekError] = []

    async def seen(call: Any) -> Any:  # Any: the responses of the calls differ
        try:
            return await call
        except OdradekError as error:
            problems.append(error)
            return None

    quorum, topics, directories, listings = await asyncio.gather(
        seen(admin.describe_quorum()),
        seen(admin.list_topics(include_internal=True)),
        seen(admin.describe_log_dirs(include_partitions=True)),
        seen(admin.list_groups()),
    )
    has_controller = quorum is not None and quorum.leader_id >= 0
    slots = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def group(name: str) -> tuple[Any, Any]:
        async with slots:
            return await seen(admin.describe_group(name)), await seen(admin.group_offsets(name))

    fenced = set()
    cluster = await seen(admin.describe_cluster()) if has_controller else None
    if cluster is not None:
        fenced = {broker.broker_id for broker in cluster.brokers if broker.is_fenced}
    fenced |= {d.broker_id for d in directories or () if d.error is not None}
    with_leader = [
        (topic.name, p.partition)
        for topic in topics or ()
        for p in topic.partitions
        if p.leader_id >= 0 and p.leader_id not in fenced
    ]
    names = [listing.group for listing in listings or ()]
    is_leaderless = not has_controller and (
        quorum is not None or any(isinstance(error, NoActiveController) for error in problems)
    )
    ends, groups = None, [(None, None)] * len(names)
    if not is_leaderless:
        ends, *groups = await asyncio.gather(
            seen(admin.list_offsets(dict.fromkeys(with_leader, -1))),
            *(group(name) for name in names),
        )
    return Look(
        at_s=time.monotonic(),
        quorum=quorum,
        cluster=cluster,
        topics=topics or (),
        directories=directories or (),
        ends={name: end.offset for name, end in (ends or {}).items()},
        groups=dict(zip(names, groups, strict=True)),
        problem="no active controller: `odradek why` shows the cause"
        if is_leaderless
        else next(map(str, problems), ""),
    )


def snapshot(earlier: Look | None, now: Look) -> dict[str, Any]:
    """Return the rows of brokers, topics and groups. Rates are computed from `earlier` to `now`; a value that is not
    known is None.
    """
    before = earlier if earlier is not None else now
    elapsed_s = max(1e-9, now.at_s - before.at_s)
    bytes_before, bytes_now = _bytes_of(before), _bytes_of(now)

    def rate(old: int | None, new: int | None) -> float | None:
        if earlier is None or old is None or new is None:
            return None
        return round(max(0, new - old) / elapsed_s, 1)

    brokers = []
    directories = {d.broker_id: d for d in now.directories}
    sized_before = {d.broker_id for d in before.directories if d.error is None}
    for broker in now.cluster.brokers if now.cluster is not None else ():
        broker_id = broker.broker_id
        directory = directories.get(broker_id)
        sizes = [size for (b, _), size in bytes_now.items() if b == broker_id]
        is_known = directory is not None and directory.error is None
        brokers.append(
            {
                "broker": broker_id,
                "state": _state(broker.is_fenced, broker.is_in_shutdown, directory),
                "leads": broker.leader_count,
                "logs": len(sizes) if is_known else None,
                "bytes": sum(sizes) if is_known else None,
                "grows per s": rate(
                    sum(s for (b, _), s in bytes_before.items() if b == broker_id),
                    sum(sizes),
                )
                if is_known and broker_id in sized_before
                else None,
                "free bytes": directory.usable_bytes if directory is not None else None,
            }
        )
    # Only partitions whose end offsets are known at both times are counted. Otherwise a whole end offset would count
    # as new records.
    in_both = before.ends.keys() & now.ends.keys()
    ends_before = _ends_by_topic(before, in_both)
    ends = _ends_by_topic(now, in_both)
    topics = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "without leader": sum(p.leader_id < 0 for p in topic.partitions),
            "under-replicated": sum(len(p.isr) < len(p.replicas) for p in topic.partitions),
            "records per s": rate(ends_before.get(topic.name), ends.get(topic.name)),
            "leaders bytes": sum(
                bytes_now.get((p.leader_id, (topic.name, p.partition)), 0) for p in topic.partitions
            ),
        }
        for topic in now.topics
    ]
    groups = []
    for name, (description, offsets) in now.groups.items():
        old = before.groups.get(name, (None, None))[1]
        shared = (old or {}).keys() & (offsets or {}).keys()
        groups.append(
            {
                "group": name,
                "state": description.state if description is not None else None,
                "members": len(description.members) if description is not None else None,
                "lag": known_lag(offsets, now.ends),
                "committed per s": rate(
                    sum(old[n] for n in shared), sum(offsets[n] for n in shared)
                )
                if old is not None and offsets is not None
                else None,
            }
        )
    return {
        "cluster": now.cluster.cluster_id if now.cluster is not None else None,
        "active controller": now.quorum.leader_id if now.quorum is not None else None,
        "brokers": sorted(brokers, key=lambda row: row["broker"]),
        "topics": sorted(topics, key=lambda row: (-(row["records per s"] or 0), row["topic"])),
        "groups": sorted(groups, key=lambda row: (-(row["lag"] or 0), row["group"])),
    }


def _state(is_fenced: bool, is_in_shutdown: bool, directory: LogDirDescription | None) -> str:
    if is_fenced:
        return "fenced"
    # A broker that cannot write moves its leaderships and is marked as shutting down, so its disk is checked first.
    if directory is not None and directory.problem:
        return "disk offline" if directory.offline_reason else "disk full"
    if is_in_shutdown:
        return "stopping"
    if directory is not None and directory.error is not None:
        return "silent"
    return "up"


def _bytes_of(seen: Look) -> dict[tuple[int, tuple[str, int]], int]:
    return {
        (directory.broker_id, name): size
        for directory in seen.directories
        for name, size in directory.partition_bytes.items()
    }


def _ends_by_topic(seen: Look, partitions: Iterable[TopicPartition]) -> dict[str, int]:
    ends: dict[str, int] = {}
    for name in partitions:
        ends[name.topic] = ends.get(name.topic, 0) + seen.ends[name]
    return ends


def rows_that_fit(facts: Mapping[str, Any], height: int) -> dict[str, int]:
    """Return how many rows of each section fit into `height` lines. Rows are given to the sections in turn.

    A section whose rows do not all fit ends with a line that counts its hidden rows.
    """
    counts = {name: len(facts[name]) for name in SECTIONS}
    shown = dict.fromkeys(SECTIONS, 0)
    free_lines = height - 2 - sum(count > 0 for count in counts.values())  # 2: title and note
    is_growing = True
    while is_growing:
        is_growing = False
        for name, count in counts.items():
            header = SECTION_LINES if shown[name] == 0 else 0
            cost = header + 1 - (shown[name] + 1 == count)
            if shown[name] < count and cost <= free_lines:
                shown[name] += 1
                free_lines -= cost
                is_growing = True
    return shown


def _view(facts: Mapping[str, Any] | None, *, height: int | None = None, note: str = "") -> Any:
    """Return the view as a rich renderable. With a `height`, the view fits into that many lines, and each row takes one
    line.
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    if facts is not None:
        leader = facts["active controller"]
        cluster = f"cluster {facts['cluster'] or '-'}"
        active = "none" if leader is None or leader < 0 else str(leader)
        parts_of_title = [cluster, f"active controller {active}", time.strftime("%H:%M:%S")]
        if height is not None:
            # On a narrow terminal the end of the title is cut off, so the cluster id, which matters least, is last.
            parts_of_title = [parts_of_title[2], "q: quit", parts_of_title[1], cluster]
        title = "   ".join(parts_of_title)
        parts.append(Text(title, style="bold", no_wrap=True, overflow="ellipsis"))
        fitting = rows_that_fit(facts, height) if height is not None else {}
        for name in SECTIONS:
            rows = facts[name]
            shown = rows[: fitting.get(name, len(rows))]
            if shown:
                table = table_of([_readable(row) for row in shown], is_folded=height is None)
                parts += [Text(), table]
            if len(shown) < len(rows):
                parts.append(Text(f"and {len(rows) - len(shown)} more {name}"))
    if note:
        parts.append(Text(printable(note), style="bold", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    sizes = ("bytes", "free bytes", "leaders bytes", "grows per s")
    return {
        name: readable_bytes(value) if name in sizes and value is not None else value
        for name, value in row.items()
    }
