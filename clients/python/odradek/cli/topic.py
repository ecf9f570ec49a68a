"""`odradek topic`: create, list, describe, change, trim and delete topics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odradek.cli.configs import Delete, Set, change_configs, named_values, note_inert
from odradek.cli.connection import chosen_partitions, complete_topics, with_client
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_USAGE,
    Bootstrap,
    DryRun,
    Output,
    OutputFormat,
    Yes,
    confirm,
    counted,
    fail,
    fail_on_errors,
    print_facts,
    print_rows,
    say,
)
from odradek.cli.times import FORMS_OF_TIMES, time_ms
from odradek.partitions import INT32_MAX

if TYPE_CHECKING:
    from odradek.client import Client

app = typer.Typer(
    help="Create, list, describe, change, trim and delete topics.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=complete_topics)]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="NAME=VALUE",
        help="Set a config of the topic to this value. Repeatable.",
    ),
]


def _count(value: int) -> int:
    """Return a number of partitions or replicas unchanged. A number that is neither positive nor -1 is a usage
    error.
    """
    if value == 0 or value < -1 or value > INT32_MAX:
        raise typer.BadParameter(
            f"{value} is not a valid number: give 1 or more, or -1 for the cluster's default"
        )
    return value


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int,
        typer.Option(
            "-p",
            "--partitions",
            metavar="N",
            help="Number of partitions. -1: the cluster's default.",
            callback=_count,
        ),
    ] = -1,
    replicas: Annotated[
        int,
        typer.Option(
            "-r",
            "--replicas",
            metavar="N",
            help="Replication factor. -1: the cluster's default.",
            callback=_count,
        ),
    ] = -1,
    config: ConfigOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic already exists.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create a topic."""
    from odradek.admin.descriptions import ConfigResourceType
    from odradek.errors import TopicExists

    configs = named_values(config)

    async def work(client: Client) -> dict[str, Any]:
        try:
            await client.admin.create_topic(
                name, partitions=partitions, replication_factor=replicas, configs=configs
            )
            note_inert(ConfigResourceType.TOPIC, configs)
        except TopicExists:
            if not if_not_exists:
                raise
        topic = await client.admin.describe_topic(name)
        return {
            "topic": name,
            "partitions": len(topic.partitions),
            "replicas": len(topic.partitions[0].replicas),
        }

    print_facts(with_client(bootstrap, work), output)


@app.command("list")
def list_topics(
    internal: Annotated[
        bool,
        typer.Option("--internal", help="Also list internal topics such as __consumer_offsets."),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List topics with their numbers of partitions and replicas."""

    async def work(client: Client) -> list[dict[str, Any]]:
        topics = await client.admin.list_topics(include_internal=internal)
        return [
            {
                "topic": topic.name,
                "partitions": len(topic.partitions),
                "replicas": max((len(p.replicas) for p in topic.partitions), default=0),
                "under-replicated": sum(len(p.isr) < len(p.replicas) for p in topic.partitions),
                "offline": sum(p.leader_id < 0 for p in topic.partitions),
            }
            for topic in sorted(topics, key=lambda topic: topic.name)
        ]

    print_rows(with_client(bootstrap, work), output, empty="there are no topics")


@app.command()
def describe(
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the partitions of a topic, and its configs.

    Partitions are shown with their leaders, replicas and offsets. Configs that are not set for the topic are left out.
    """

    async def work(client: Client) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        topic = await client.admin.describe_topic(name)
        configs = await client.admin.describe_topic_configs(name)
        with_leader = [(name, p.partition) for p in topic.partitions if p.leader_id >= 0]
        async with client.consumer() as consumer:
            starts = await consumer.beginning_offsets(with_leader)
            ends = await consumer.end_offsets(with_leader)
        first = {key[1]: offset for key, offset in starts.items()}
        last = {key[1]: offset for key, offset in ends.items()}
        rows = [
            {
                "partition": p.partition,
                "leader": p.leader_id,
                "epoch": p.leader_epoch,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "elr": list(p.elr),
                "start": first.get(p.partition, -1),
                "end": last.get(p.partition, -1),
            }
            for p in topic.partitions
        ]
        from odradek.admin.descriptions import ConfigSource

        topic_configs = {
            n: c.value for n, c in sorted(configs.items()) if c.source == ConfigSource.TOPIC
        }
        return rows, topic_configs

    rows, own = with_client(bootstrap, work)
    if output is OutputFormat.JSON:
        print_facts({"topic": name, "partitions": rows, "configs": own}, output)
        return
    print_rows(rows, output, empty="no partitions")
    if own:
        say("\n" + "\n".join(f"{key}={value}" for key, value in own.items()))


@app.command("alter-config")
def alter_config(
    name: Name,
    config: Set = None,
    delete: Delete = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Set configs of a topic, or reset them to their defaults. If one change is invalid, none is made."""
    changes, deleted = named_values(config), delete or []
    if not changes and not deleted:
        fail("nothing to change: add --set NAME=VALUE or --delete NAME", status=EXIT_USAGE)

    async def work(client: Client) -> None:
        from odradek.admin.descriptions import ConfigResource, ConfigResourceType

        resource = ConfigResource(type=ConfigResourceType.TOPIC, name=name)
        await change_configs(client, resource, changes, deleted)

    with_client(bootstrap, work)
    print_facts({"topic": name, "set": list(changes), "deleted": deleted}, output)


@app.command("add-partitions")
def add_partitions(
    name: Name,
    total: Annotated[
        int,
        typer.Argument(help="New total number of partitions of the topic.", min=2, max=INT32_MAX),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Add partitions to a topic.

    Afterwards, new records may go to another partition than older records with the same key.
    """

    async def work(client: Client) -> None:
        await client.admin.add_partitions(name, total)

    with_client(bootstrap, work)
    print_facts({"topic": name, "partitions": total}, output)


@app.command()
def trim(
    name: Name,
    before: Annotated[
        str,
        typer.Option(
            metavar="OFFSET|end", help="Delete the records before this offset; end: all records."
        ),
    ] = "",
    until: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help=f"Delete all records before the first one whose timestamp is at or after TIME: {FORMS_OF_TIMES}.",
        ),
    ] = "",
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "-p",
            "--partition",
            metavar="N",
            help="Trim only this partition. Repeatable. [default: all]",
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete the oldest records of a topic. The topic itself and the offsets of its other records do not change."""
    if bool(before) == bool(until):
        fail("give exactly one of --before OFFSET and --until TIME", status=EXIT_USAGE)
    if before and before != "end" and not re.fullmatch("[0-9]{1,19}", before):
        fail(f"--before {before} is not valid: write an offset, or end", status=EXIT_USAGE)
    until_ms = time_ms(until, option="--until") if until else 0

    async def plan(client: Client) -> list[dict[str, Any]]:
        names = await chosen_partitions(client, [name], partition)
        async with client.consumer() as consumer:
            starts = await consumer.beginning_offsets(names)
            ends = await consumer.end_offsets(names)
            if until:
                times = await consumer.offsets_for_times(dict.fromkeys(names, until_ms))
                new_starts = {n: ends[n] if at is None else at.offset for n, at in times.items()}
            else:
                new_starts = {n: ends[n] if before == "end" else int(before) for n in ends}
        return [
            {
                "topic": key.topic,
                "partition": key.partition,
                "start": start,
                "new start": min(new_starts[key], ends[key]),
                "end": ends[key],
                "records": min(new_starts[key], ends[key]) - start,
            }
            for key, start in sorted(starts.items())
            if min(new_starts[key], ends[key]) > start
        ]

    async def work(client: Client) -> None:
        offsets = {(row["topic"], row["partition"]): row["new start"] for row in rows}
        outcomes = await client.admin.delete_records(offsets)
        fail_on_errors(outcome.error for outcome in outcomes)

    rows = with_client(bootstrap, plan)
    print_rows(rows, output, empty="there are no records to delete")
    if dry_run and rows:
        say("dry run: nothing was deleted", is_error=True)
    if dry_run or not rows:
        return
    # Compaction and transaction markers leave offsets without records, so this number of records is an upper limit.
    confirm(
        f"Delete up to {sum(row['records'] for row in rows):,} records of {name}?",
        is_confirmed=yes,
    )
    with_client(bootstrap, work)


@app.command()
def delete(
    name: Name,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete a topic and its records."""

    async def count(client: Client) -> int:
        return len((await client.admin.describe_topic(name)).partitions)

    async def work(client: Client) -> None:
        await client.admin.delete_topic(name)

    partitions = with_client(bootstrap, count)
    if not dry_run:
        confirm(
            f"Delete topic {name} with {counted(partitions, 'partition')} and all their records?",
            is_confirmed=yes,
        )
        with_client(bootstrap, work)
    print_facts({"topic": name, "partitions": partitions, "deleted": not dry_run}, output)
