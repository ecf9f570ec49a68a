"""`odradek top`: a live view of brokers, topics and groups, with rates from one look at the cluster to the next."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from odradek.cli.connection import connect_s_max, with_client
from odradek.cli.group import GROUPS_AT_ONCE
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Output,
    OutputFormat,
    console,
    print_facts,
    readable_bytes,
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

ROWS_MAX: Final = 12
"""Topics and groups that the live view shows; the busiest ones. A snapshot has all of them."""
CHROME_LINES: Final = 10
"""Lines of the live view besides the rows of its tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The state of the cluster at one moment. What was not told, because a process is down, is empty or None."""

    at_s: float
    quorum: QuorumDescription | None = None
    cluster: ClusterDescription | None = None
    topics: Sequence[TopicDescription] = ()
    directories: Sequence[LogDirDescription] = ()
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    groups: Mapping[str, tuple[GroupDescription | None, Mapping[TopicPartition, int]]] = field(
        default_factory=dict
    )


def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print one snapshot, with rates over one interval.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time from one look to the next.")
    ] = 2.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show brokers, topics and groups with their rates, live.

    Ctrl-C ends it. With -o json, each interval prints one line of JSON. Without a terminal, tables are printed one
    after the other.
    """
    import asyncio

    async def work(client: Client) -> None:
        client.admin_timeout_s = connect_s_max()
        previous = await look(client)
        live = (
            _live() if output is OutputFormat.TABLE and not once and sys.stdout.isatty() else None
        )
        try:
            while True:
                await asyncio.sleep(interval)
                present = await look(client)
                facts = snapshot(previous, present)
                previous = present
                if output is OutputFormat.JSON:
                    print_facts(facts, output)
                    sys.stdout.flush()
                elif live is None:
                    console().print(_view(facts))
                else:
                    live.update(_view(facts, rows_max=_rows_of(live)), refresh=True)
                if once:
                    return
        finally:
            if live is not None:
                live.stop()

    with_client(bootstrap, work, is_quick=False)


async def look(client: Client) -> Look:
    """Look at the whole cluster. What does not respond is left out."""
    import asyncio

    from odradek.errors import OdradekError

    admin = client.admin

    async def seen(call: Any) -> Any:  # Any: the responses of the calls differ
        try:
            return await call
        except OdradekError:
            return None

    quorum, topics, directories, listings = await asyncio.gather(
        seen(admin.describe_quorum()),
        seen(admin.list_topics(include_internal=True)),
        seen(admin.describe_log_dirs(include_partitions=True)),
        seen(admin.list_groups()),
    )
    has_controller = quorum is not None and quorum.leader_id >= 0
    turns = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def group(name: str) -> tuple[Any, dict[TopicPartition, int]]:
        async with turns:
            return await seen(admin.describe_group(name)), await seen(
                admin.group_offsets(name)
            ) or {}

    fenced = set()
    cluster = await seen(admin.describe_cluster()) if has_controller else None
    if cluster is not None:
        fenced = {broker.broker_id for broker in cluster.brokers if broker.is_fenced}
    fenced |= {d.broker_id for d in directories or () if d.error is not None}
    led = [
        (topic.name, p.partition)
        for topic in topics or ()
        for p in topic.partitions
        if p.leader_id >= 0 and p.leader_id not in fenced
    ]
    names = [listing.group for listing in listings or ()]
    ends, *groups = await asyncio.gather(
        seen(admin.list_offsets(dict.fromkeys(led, -1))), *(group(name) for name in names)
    )
    return Look(
        at_s=time.monotonic(),
        quorum=quorum,
        cluster=cluster,
        topics=topics or (),
        directories=directories or (),
        ends={name: found.offset for name, found in (ends or {}).items()},
        groups=dict(zip(names, groups, strict=True)),
    )


def snapshot(before: Look, now: Look) -> dict[str, Any]:
    """Return rows for brokers, topics and groups; rates count from `before` to `now`. None: not known."""
    elapsed_s = max(1e-9, now.at_s - before.at_s)
    bytes_before, bytes_now = _bytes_of(before), _bytes_of(now)

    def rate(old: int | None, new: int | None) -> float | None:
        if old is None or new is None:
            return None
        return round(max(0, new - old) / elapsed_s, 1)

    brokers = []
    directories = {d.broker_id: d for d in now.directories}
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
                if is_known
                else None,
                "free bytes": directory.usable_bytes if directory is not None else None,
            }
        )
    ends_before = _ends_by_topic(before)
    ends = _ends_by_topic(now)
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
        old = before.groups.get(name, (None, {}))[1]
        shared = old.keys() & offsets.keys()
        groups.append(
            {
                "group": name,
                "state": description.state if description is not None else None,
                "members": len(description.members) if description is not None else None,
                "lag": sum(max(0, now.ends[n] - at) for n, at in offsets.items() if n in now.ends)
                if description is not None
                else None,
                "committed per s": rate(
                    sum(old[n] for n in shared), sum(offsets[n] for n in shared)
                ),
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
    if is_in_shutdown:
        return "stopping"
    if directory is not None and directory.error is not None:
        return "silent"
    if directory is not None and directory.problem:
        return "disk offline" if directory.offline_reason else "disk full"
    return "up"


def _bytes_of(seen: Look) -> dict[tuple[int, tuple[str, int]], int]:
    return {
        (directory.broker_id, name): size
        for directory in seen.directories
        for name, size in directory.partition_bytes.items()
    }


def _ends_by_topic(seen: Look) -> dict[str, int]:
    ends: dict[str, int] = {}
    for name, end in seen.ends.items():
        ends[name.topic] = ends.get(name.topic, 0) + end
    return ends


def _live() -> Any:
    from rich.live import Live

    live = Live(console=console(), screen=True, auto_refresh=False)
    live.start()
    return live


def _rows_of(live: Any) -> int:
    """Return how many topics and groups fit on the terminal."""
    height: int = live.console.height
    return max(3, min(ROWS_MAX, (height - CHROME_LINES) // 3))


def _view(facts: Mapping[str, Any], *, rows_max: int | None = None) -> Any:
    from rich.console import Group
    from rich.text import Text

    leader = facts["active controller"]
    title = f"cluster {facts['cluster'] or '-'}   active controller "
    title += "none" if leader is None or leader < 0 else str(leader)
    parts: list[Any] = [Text(f"{title}   {time.strftime('%H:%M:%S')}", style="bold")]
    for name in ("brokers", "topics", "groups"):
        rows = facts[name]
        if not rows:
            continue
        shown = rows if rows_max is None else rows[:rows_max]
        parts += [Text(), table_of([_readable(row) for row in shown])]
        if len(shown) < len(rows):
            parts.append(Text(f"and {len(rows) - len(shown)} more {name}"))
    return Group(*parts)


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    sizes = ("bytes", "free bytes", "leaders bytes", "grows per s")
    return {
        name: readable_bytes(value) if name in sizes and value is not None else value
        for name, value in row.items()
    }
