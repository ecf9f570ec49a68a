"""`odradek group`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from odradek.cli.configs import group_config
from odradek.cli.connection import (
    chosen_partitions,
    complete_groups,
    complete_topics,
    group_suggestion,
    suggested_groups,
    with_client,
    with_suggestion,
)
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_USAGE,
    Bootstrap,
    DryRun,
    Output,
    OutputFormat,
    Yes,
    canonical,
    confirm,
    fail,
    fail_on_errors,
    print_facts,
    print_rows,
    say,
)
from odradek.cli.times import FORMS_OF_TIMES, time_ms
from odradek.spelling import did_you_mean

if TYPE_CHECKING:
    from odradek.client import Client
    from odradek.errors import OdradekError
    from odradek.partitions import TopicPartition

app = typer.Typer(
    help="List, describe, reset and delete consumer groups.",
    no_args_is_help=True,
)
Group = Annotated[
    str, typer.Argument(help="Name of the consumer group.", autocompletion=complete_groups)
]
app.command("config")(group_config)
_FIELDS_WITH_GROUP: Final = 4
GROUPS_AT_ONCE: Final = 16
"""How many groups one command describes concurrently."""
GROUP_STATES: Final = (
    "Stable",
    "Empty",
    "Assigning",
    "Reconciling",
    "PreparingRebalance",
    "CompletingRebalance",
    "Dead",
)
KAFKAS_ENDS: Final = {"earliest": "start", "latest": "end"}
"""For each of Kafka's names for the two ends of a log: the name that `odradek group seek --to` uses."""


@app.command("list")
def list_groups(
    lag: Annotated[
        bool,
        typer.Option(
            "--lag", help="Also show the number of members of each group, and its lag in records."
        ),
    ] = False,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="List only groups in this state, such as Stable. Repeatable."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List consumer groups with their states."""
    states = {canonical("--state", name, GROUP_STATES) for name in state or ()}

    async def work(client: Client) -> list[dict[str, Any]]:
        listings = [
            listing
            for listing in await client.admin.list_groups()
            if not states or listing.state in states
        ]
        totals = await group_lags(client, [g.group for g in listings]) if lag else {}
        return [
            {
                "group": listing.group,
                "state": listing.state,
                "type": listing.type,
                **(
                    {"members": totals[listing.group][0], "lag": totals[listing.group][1]}
                    if lag
                    else {}
                ),
            }
            for listing in listings
        ]

    print_rows(with_client(bootstrap, work), output, empty="there are no groups")


async def group_lags(
    client: Client, groups: Sequence[str]
) -> dict[str, tuple[int | None, int | None]]:
    """Return the number of members and the lag in records of each group, by group name.

    The lag counts only partitions with a committed offset. A number is None if the group's coordinator does not respond
    or does not authorize the caller.
    """
    import asyncio

    from odradek.errors import OdradekError

    slots = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def described_group(group: str) -> tuple[int | None, dict[TopicPartition, int] | None]:
        async with slots:
            try:
                description = await client.admin.describe_group(group)
                return len(description.members), await client.admin.group_offsets(group)
            except OdradekError:
                return None, None

    described = await asyncio.gather(*map(described_group, groups))
    ends = await _known_ends(client, sorted({n for _, offsets in described for n in offsets or ()}))
    return {
        group: (members, known_lag(offsets, ends))
        for group, (members, offsets) in zip(groups, described, strict=True)
    }


def known_lag(
    offsets: Mapping[TopicPartition, int] | None, ends: Mapping[TopicPartition, int]
) -> int | None:
    """Return the lag of a group in records, over the partitions whose end offsets are known.

    The result is None if `offsets` is None, or if no partition with a committed offset has a known end offset.
    """
    if offsets is None or (offsets and offsets.keys().isdisjoint(ends)):
        return None
    return sum(max(0, ends[name] - at) for name, at in offsets.items() if name in ends)


@app.command()
def describe(
    group: Group, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE
) -> None:
    """Show the members, committed offsets and lag of a group."""

    async def work(client: Client) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with suggested_groups(client, group):
            description = await client.admin.describe_group(group)
        offsets = await client.admin.group_offsets(group)
        owners = {name: member for member in description.members for name in member.assignment}
        names = sorted({*offsets, *owners})
        ends = await _known_ends(client, names)
        rows: list[dict[str, Any]] = [
            {
                "topic": name.topic,
                "partition": name.partition,
                "committed": offsets.get(name),
                "end": ends.get(name),
                "lag": max(0, ends[name] - offsets[name])
                if name in offsets and name in ends
                else None,
                "member": (owners[name].instance_id or owners[name].member_id)
                if name in owners
                else None,
                "client": owners[name].client_id if name in owners else None,
                "host": owners[name].host if name in owners else None,
            }
            for name in names
        ]
        facts = {
            "group": group,
            "state": description.state,
            "type": description.type,
            "epoch": description.epoch,
            "coordinator": description.coordinator_id,
            "members": len(description.members),
            "lag": sum(int(row["lag"] or 0) for row in rows),
        }
        return facts, rows

    facts, rows = with_client(bootstrap, work)
    if output is OutputFormat.JSON:
        print_facts({**facts, "partitions": rows}, output)
        return
    print_facts(facts, output)
    print()
    print_rows(rows, output, empty="the group has no committed offsets and no partitions")


async def _known_ends(client: Client, names: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the end offsets of those partitions that have a leader. A group can thus be described while other
    partitions have no leader.
    """
    with_leader = {
        (topic.name, partition.partition)
        for topic in await client.admin.list_topics(include_internal=True)
        for partition in topic.partitions
        if partition.leader_id >= 0
    }
    async with client.consumer() as consumer:
        return await consumer.end_offsets([name for name in names if name in with_leader])


@app.command()
def seek(
    group: Group,
    to: Annotated[
        str,
        typer.Option(
            metavar="[start|end|@MS|OFFSET]",
            help="The offset to commit. start: the earliest; end: the end offset; @MS: the offset of the first record"
            " at or after MS, a time in ms since the epoch; a number: that number.",
        ),
    ] = "",
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help=f"Commit the offset of the first record at or after this time: {FORMS_OF_TIMES}.",
        ),
    ] = "",
    by: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Add N to the committed offsets. A negative N moves the group back.",
        ),
    ] = 0,
    from_group: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Copy the committed offsets of this group.",
            autocompletion=complete_groups,
        ),
    ] = "",
    from_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Commit the offsets in this file, which has lines of TOPIC,PARTITION,OFFSET as Kafka's tools write"
            " them, or the JSON output of `odradek group describe`.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Change only the committed offsets of this topic. Repeatable."
            " [default: all topics with committed offsets]",
            autocompletion=complete_topics,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "-p",
            "--partition",
            metavar="N",
            help="Change only the committed offset of this partition. Repeatable.",
        ),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Change the committed offsets of a group without members.

    An offset before the first record, or after the end, becomes the nearest existing offset. The exit status is 1 if
    there are no offsets to change.
    """
    from odradek.partitions import TopicPartition

    if sum(map(bool, (to, since, by, from_group, from_file))) != 1:
        fail(
            "choose the new offsets with one of --to, --since, --by, --from-group and --from-file",
            status=EXIT_USAGE,
        )
    to = KAFKAS_ENDS.get(to, to)
    if to and not re.fullmatch("start|end|@?[0-9]{1,18}", to):
        allowed = "start or earliest, end or latest, @MILLISECONDS or an offset"
        suggestion = did_you_mean(to, ("start", "end", *KAFKAS_ENDS))
        fail(f"--to {to} is not valid: write {allowed}{suggestion}", status=EXIT_USAGE)
    since_ms = time_ms(since, option="--since") if since else None
    if to.startswith("@"):
        since_ms = int(to[1:])
    listed = offsets_of_file(from_file, group) if from_file is not None else {}

    def is_chosen(name: TopicPartition) -> bool:
        return (not topic or name.topic in topic) and (
            partition is None or name.partition in partition
        )

    async def work(client: Client) -> tuple[list[dict[str, Any]], str]:
        committed = await client.admin.group_offsets(group)
        given = listed
        if by:
            given = {name: offset + by for name, offset in committed.items()}
        elif from_group:
            given = await client.admin.group_offsets(from_group)
        if by or from_group or from_file:
            names = sorted(filter(is_chosen, given))
        elif topic:
            names = [TopicPartition(*n) for n in await chosen_partitions(client, topic, partition)]
        else:
            names = sorted(filter(is_chosen, committed))
        async with client.consumer() as consumer:
            starts = await consumer.beginning_offsets(names)
            ends = await consumer.end_offsets(names)
            if since_ms is not None:
                times = await consumer.offsets_for_times(dict.fromkeys(names, since_ms))
                given = {n: ends[n] if at is None else at.offset for n, at in times.items()}
        if to == "start":
            given = starts
        elif to == "end":
            given = ends
        elif to and since_ms is None:
            given = dict.fromkeys(names, int(to))
        chosen = {name: max(starts[name], min(given[name], ends[name])) for name in names}
        if chosen and not dry_run:
            await client.admin.alter_group_offsets(group, chosen)
        suggestion = "" if chosen else await group_suggestion(client, from_group or group)
        return [
            {
                "topic": name.topic,
                "partition": name.partition,
                "before": committed.get(name),
                "after": offset,
            }
            for name, offset in sorted(chosen.items())
        ], suggestion

    rows, suggestion = with_client(bootstrap, work)
    print_rows(
        rows,
        output,
        empty=f"group {from_group or group} has no committed offsets: {suggestion}check its name, or choose partitions"
        " with --topic NAME, and their first offsets with --to or --since",
    )
    if not rows:
        raise typer.Exit(1)
    if dry_run:
        say("dry run: no offset was changed", is_error=True)


def offsets_of_file(path: Path, group: str) -> dict[TopicPartition, int]:
    """Return the offsets in the file of `--from-file`. A file in another format ends the command with an error. Lines
    for other groups are ignored.
    """
    from odradek.partitions import TopicPartition, as_partitions

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {path}: {getattr(error, 'strerror', error)}", status=EXIT_USAGE)
    try:
        if text.lstrip().startswith(("{", "[")):
            parsed = json.loads(text)
            rows = parsed["partitions"] if isinstance(parsed, dict) else parsed
            triples = [
                (row["topic"], row["partition"], row[name])
                for row in rows
                for name in ("offset", "committed", "after")
                if row.get(name) is not None
            ]
        else:
            lines = list(csv.reader(line for line in text.splitlines() if line.strip()))
            # Kafka's export of several groups has the group's name in its first column. Only the lines of `group` are
            # used, because other groups may have other offsets in the same partition.
            triples = [
                (line[-3], line[-2], line[-1])
                for line in lines
                if len(line) < _FIELDS_WITH_GROUP or line[0] == group
            ]
            if lines and not triples:
                fail(f"{path} has no offsets for group {group}", status=EXIT_USAGE)
        offsets = {TopicPartition(str(t), int(p)): int(o) for t, p, o in triples}
        as_partitions(offsets)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        offsets = {}
    if not offsets:
        fail(
            f"{path} has no list of offsets: it needs lines of TOPIC,PARTITION,OFFSET,"
            " or the JSON output of `odradek group describe`",
            status=EXIT_USAGE,
        )
    return offsets


@app.command()
def delete(
    group: Annotated[
        list[str],
        typer.Argument(
            help="Names of the consumer groups to delete.", autocompletion=complete_groups
        ),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete groups with their committed offsets.

    A group that has members is not deleted: stop the members first.
    """

    from odradek.errors import UnknownGroup

    async def describe_all(client: Client) -> list[dict[str, Any]]:
        described = []
        for name in group:
            async with suggested_groups(client, name):
                described.append(await client.admin.describe_group(name))
        return [{"group": d.group, "state": d.state, "deleted": False} for d in described]

    async def work(client: Client) -> dict[str, OdradekError | None]:
        outcomes = await client.admin.delete_groups(group)
        for name, error in outcomes.items():
            if isinstance(error, UnknownGroup):
                outcomes[name] = await with_suggestion(client, name, error)
        return outcomes

    if dry_run:
        print_rows(with_client(bootstrap, describe_all), output, empty="no groups")
        return
    confirm(f"Delete {', '.join(group)} with all their committed offsets?", is_confirmed=yes)
    outcomes = with_client(bootstrap, work)
    # If only some groups were deleted, the user must see which.
    rows = [{"group": name, "deleted": error is None} for name, error in outcomes.items()]
    if any(row["deleted"] for row in rows):
        print_rows(rows, output, empty="no groups")
    fail_on_errors(outcomes.values())


@app.command("offset-delete")
def offset_delete(
    group: Group,
    topic: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Delete the committed offsets of this topic.",
            autocompletion=complete_topics,
        ),
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "-p",
            "--partition",
            metavar="N",
            help="Delete only the committed offset of this partition. Repeatable.",
        ),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete the committed offsets of a group in one topic.

    The offsets are not deleted while a member of the group is subscribed to the topic.
    """

    async def work(client: Client) -> tuple[list[dict[str, Any]], str]:
        committed = await client.admin.group_offsets(group)
        suggestion = "" if committed else await group_suggestion(client, group)
        names = [
            name
            for name in sorted(committed)
            if name.topic == topic and (partition is None or name.partition in partition)
        ]
        if not dry_run and names:
            await client.admin.delete_group_offsets(group, names)
        return [
            {
                "topic": n.topic,
                "partition": n.partition,
                "was": committed[n],
                "deleted": not dry_run,
            }
            for n in names
        ], suggestion

    rows, suggestion = with_client(bootstrap, work)
    print_rows(
        rows,
        output,
        empty=f"group {group} has no committed offsets in this topic or these partitions: {suggestion}check the names",
    )
