"""`odradek group`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odradek.cli.configs import group_config
from odradek.cli.connection import chosen_partitions, complete_groups, complete_topics, with_client
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_USAGE,
    Bootstrap,
    Output,
    OutputFormat,
    fail,
    print_facts,
    print_rows,
)

if TYPE_CHECKING:
    from odradek.client import Client
    from odradek.partitions import TopicPartition

app = typer.Typer(
    help="List, describe, reset and delete consumer groups.",
    no_args_is_help=True,
)
Group = Annotated[
    str, typer.Argument(help="Name of the consumer group.", autocompletion=complete_groups)
]
app.command("config")(group_config)
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be changed, without changing it.")
]


@app.command("list")
def list_groups(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE
) -> None:
    """List groups."""

    async def work(client: Client) -> list[dict[str, Any]]:
        return [
            {"group": listing.group, "state": listing.state, "type": listing.type}
            for listing in await client.admin.list_groups()
        ]

    print_rows(with_client(bootstrap, work), output, empty="there are no groups")


@app.command()
def describe(
    group: Group, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE
) -> None:
    """Show members, committed offsets and lag."""

    async def work(client: Client) -> tuple[dict[str, Any], list[dict[str, Any]]]:
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
    """The end offsets of partitions that have a leader, so that a group can be described during an outage."""
    led = {
        (topic.name, partition.partition)
        for topic in await client.admin.list_topics(include_internal=True)
        for partition in topic.partitions
        if partition.leader_id >= 0
    }
    async with client.consumer() as consumer:
        return await consumer.end_offsets([name for name in names if name in led])


@app.command()
def seek(
    group: Group,
    to: Annotated[
        str,
        typer.Option(
            metavar="[start|end|@MS|OFFSET]",
            help="Commit this position: the start, the end, the first record of a time in ms "
            "since the epoch, or an offset.",
        ),
    ],
    topic: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Change the committed offsets of this topic. Repeatable.",
            autocompletion=complete_topics,
        ),
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "-p",
            "--partition",
            metavar="N",
            help="Change the committed offset of this partition only. Repeatable.",
        ),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Change the committed offsets of a group without members."""
    if to not in ("start", "end") and not to.removeprefix("@").isdigit():
        fail(f"--to {to}: write start, end, @MILLISECONDS or an offset", status=EXIT_USAGE)

    async def work(client: Client) -> list[dict[str, Any]]:
        names = await chosen_partitions(client, topic, partition)
        before = await client.admin.group_offsets(group, names)
        async with client.consumer() as consumer:
            ends = await consumer.end_offsets(names)
            if to == "start":
                chosen = await consumer.beginning_offsets(names)
            elif to == "end":
                chosen = ends
            elif to.startswith("@"):
                times = await consumer.offsets_for_times(dict.fromkeys(names, int(to[1:])))
                chosen = {n: ends[n] if at is None else at.offset for n, at in times.items()}
            else:
                chosen = {n: min(int(to), end) for n, end in ends.items()}
        if not dry_run:
            await client.admin.alter_group_offsets(group, chosen)
        return [
            {
                "topic": name.topic,
                "partition": name.partition,
                "before": before.get(name),
                "after": offset,
            }
            for name, offset in sorted(chosen.items())
        ]

    print_rows(with_client(bootstrap, work), output, empty="no partitions")


@app.command()
def delete(
    group: Annotated[
        list[str],
        typer.Argument(
            help="Names of the consumer groups to delete.", autocompletion=complete_groups
        ),
    ],
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete groups and their committed offsets.

    Groups with members are refused.
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        if dry_run:
            described = [await client.admin.describe_group(name) for name in group]
            return [{"group": d.group, "state": d.state, "deleted": False} for d in described]
        outcomes = await client.admin.delete_groups(group)
        for error in outcomes.values():
            if error is not None:
                raise error
        return [{"group": name, "deleted": True} for name in outcomes]

    print_rows(with_client(bootstrap, work), output, empty="no groups")


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
            help="Delete the committed offset of this partition only. Repeatable.",
        ),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete a group's committed offsets of a topic.

    The topic is refused if a member of the group reads it.
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        committed = await client.admin.group_offsets(group)
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
        ]

    print_rows(
        with_client(bootstrap, work),
        output,
        empty="the group has no committed offsets in these partitions",
    )
