"""`odradek partition`: list and move partitions, elect leaders, and throttle replication."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from odradek.cli.connection import (
    chosen_partitions,
    complete_broker_lists,
    complete_brokers,
    complete_topics,
    with_client,
)
from odradek.cli.moves import MovePlan, Wait, move_partitions, wait_for_moves
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
    print_rows,
    say,
)
from odradek.cli.times import size_bytes
from odradek.partitions import INT32_MAX

if TYPE_CHECKING:
    from odradek.admin.descriptions import Partition, TopicDescription
    from odradek.client import Client
    from odradek.partitions import TopicPartition

THROTTLE: Final = "follower.replication.throttled.rate"
app = typer.Typer(
    help="List and move partitions, elect leaders, throttle replication.", no_args_is_help=True
)
Topic = Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=complete_topics)]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="NAME",
        help="Include only partitions of this topic. Repeatable. [default: all topics]",
        autocompletion=complete_topics,
    ),
]
Indexes = Annotated[
    list[int] | None,
    typer.Option(
        "-p",
        "--partition",
        metavar="N",
        help="Include only this partition of the topic. Repeatable. [default: all partitions]",
    ),
]


def broker_ids(text: str, *, option: str) -> list[int]:
    """Return the broker ids in a text such as 1,2,3. A text of another form ends the command with an error."""
    parts = [part.strip() for part in text.split(",")]
    ids = [int(part) if re.fullmatch("[0-9]{1,10}", part) else -1 for part in parts]
    if not all(0 <= id_ <= INT32_MAX for id_ in ids) or len(set(ids)) < len(ids):
        fail(
            f"{option} {text} is not valid: write distinct broker ids, such as 1,2,3",
            status=EXIT_USAGE,
        )
    return ids


async def existing_topics(
    client: Client, names: Sequence[str] | None, *, include_internal: bool = True
) -> list[TopicDescription]:
    """Return the topics with these names, or all topics if `names` is empty or None. Raises UnknownTopic."""
    from odradek.errors import UnknownTopic

    topics = await client.admin.list_topics(include_internal=include_internal or bool(names))
    if unknown := set(names or ()) - {topic.name for topic in topics}:
        raise UnknownTopic(f"topic {min(unknown)!r} does not exist")
    return [topic for topic in topics if not names or topic.name in names]


def _state(partition: Partition) -> str:
    if partition.leader_id < 0:
        return "no leader"
    if partition.adding_replicas or partition.removing_replicas:
        return "moving"
    return "under-replicated" if len(partition.isr) < len(partition.replicas) else "in sync"


@app.command("list")
def list_partitions(
    topic: Topics = None,
    under_replicated: Annotated[
        bool,
        typer.Option(
            "--under-replicated", help="List only partitions with replicas that are out of sync."
        ),
    ] = False,
    without_leader: Annotated[
        bool, typer.Option("--without-leader", help="List only partitions without a leader.")
    ] = False,
    not_preferred: Annotated[
        bool,
        typer.Option(
            "--not-preferred",
            help="List only partitions whose leader is not the first (preferred) replica.",
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List partitions with their leaders and replicas."""

    def is_listed(p: Partition) -> bool:
        return (
            not (under_replicated and len(p.isr) == len(p.replicas))
            and not (without_leader and p.leader_id >= 0)
            and not (not_preferred and p.leader_id == p.replicas[0])
        )

    async def work(client: Client) -> list[dict[str, Any]]:
        return [
            {
                "topic": described.name,
                "partition": p.partition,
                "leader": p.leader_id,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "state": _state(p),
            }
            for described in await existing_topics(client, topic)
            for p in described.partitions
            if is_listed(p)
        ]

    print_rows(with_client(bootstrap, work), output, empty="there are no such partitions")


@app.command()
def elect(
    topic: Topics = None,
    partition: Indexes = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="For partitions without a leader, elect a replica that is out of sync. Records that this replica"
            " does not have are lost.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make preferred replicas the leaders of their partitions.

    Use this command to balance leaders after brokers have restarted. The preferred replica is the first in a
    partition's list of replicas. Partitions that already have this leader are not changed.
    """

    async def plan(client: Client) -> list[dict[str, Any]]:
        return [
            {
                "topic": described.name,
                "partition": p.partition,
                "leader": p.leader_id,
                "preferred": p.replicas[0],
            }
            for described in await existing_topics(client, topic)
            for p in described.partitions
            if (partition is None or p.partition in partition)
            and (p.leader_id < 0 if unclean else p.leader_id != p.replicas[0])
        ]

    async def work(client: Client) -> None:
        names = [(row["topic"], row["partition"]) for row in rows]
        outcomes = await client.admin.elect_leaders(names, unclean=unclean)
        fail_on_errors(outcome.error for outcome in outcomes)

    if partition is not None and len(topic or ()) != 1:
        fail("--partition needs exactly one --topic", status=EXIT_USAGE)
    rows = with_client(bootstrap, plan)
    empty = (
        "every partition has a leader"
        if unclean
        else "every partition is led by its preferred replica"
    )
    print_rows(rows, output, empty=empty)
    if dry_run and rows:
        say("dry run: no leader was changed", is_error=True)
    if dry_run or not rows:
        return
    if unclean:
        confirm(
            f"Elect leaders of {counted(len(rows), 'partition')}, and lose the records that the new leaders lack?",
            is_confirmed=yes,
        )
    with_client(bootstrap, work)


@app.command()
def move(
    topic: Topic,
    to: Annotated[
        str,
        typer.Option(
            metavar="ID,...",
            help="Ids of the brokers to place the replicas on, separated by commas, the preferred leader first.",
            autocompletion=complete_broker_lists,
        ),
    ],
    partition: Indexes = None,
    wait: Wait = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Move partitions of a topic to these brokers.

    Clients can read and write a partition while it moves. Its records are copied first, and old replicas are deleted
    when all new replicas are in sync.
    """
    target = tuple(broker_ids(to, option="--to"))

    async def plan(client: Client) -> MovePlan:
        names = await chosen_partitions(client, [topic], partition)
        return await _plan_of(client, dict.fromkeys(names, target))

    move_partitions(
        bootstrap,
        plan,
        dry_run=dry_run,
        is_confirmed=yes,
        wait=wait,
        output=output,
        empty="the replicas are already on these brokers",
    )


@app.command("set-replicas")
def set_replicas(
    topic: Topic,
    count: Annotated[int, typer.Argument(min=1, help="New replication factor of the topic.")],
    wait: Wait = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Change the replication factor of a topic.

    New replicas are placed on hosts and racks without a replica of the partition if possible; among the brokers of
    these hosts and racks, those with the fewest replicas are chosen. When the factor is lowered, replicas that are
    out of sync are removed first.
    """

    async def plan(client: Client) -> MovePlan:
        from odradek.admin.reassignments import with_replica_count

        cluster = await client.admin.describe_cluster()
        live = [broker for broker in cluster.brokers if not broker.is_fenced]
        topics = await client.admin.list_topics(include_internal=True)
        described = await client.admin.describe_topic(topic)
        loads = Counter({broker.broker_id: 0 for broker in live})
        loads.update(b for t in topics for p in t.partitions for b in p.replicas if b in loads)
        if count > len(live):
            fail(
                f"{count} replicas need {count} live brokers, but only {len(live)} are live:"
                " `odradek cluster info` lists all brokers",
                status=EXIT_USAGE,
            )
        after = with_replica_count(
            described,
            count,
            loads=loads,
            racks={b.broker_id: b.rack for b in live if b.rack},
            hosts={b.broker_id: b.host for b in live if b.host},
        )
        return await _plan_of(client, {(topic, index): after[index] for index in after})

    move_partitions(
        bootstrap,
        plan,
        dry_run=dry_run,
        is_confirmed=yes,
        wait=wait,
        output=output,
        empty=f"all partitions of {topic} already have {count} replicas",
    )


@app.command()
def reassign(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON file in the format of kafka-reassign-partitions:"
            ' {"partitions": [{"topic": ..., "partition": 0, "replicas": [1, 2]}]}.'
        ),
    ],
    wait: Wait = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Move partitions to the brokers that a JSON file lists."""
    try:
        listed = json.loads(file.read_text())["partitions"]
        after = {(str(p["topic"]), int(p["partition"])): tuple(p["replicas"]) for p in listed}
        is_valid = all(after.values()) and all(
            isinstance(broker, int) for replicas in after.values() for broker in replicas
        )
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {file}: {getattr(error, 'strerror', error)}", status=EXIT_USAGE)
    except (ValueError, KeyError, TypeError):
        is_valid = False
    if not is_valid:
        fail(
            f"{file} does not have the form"
            f' {{"partitions": [{{"topic": "orders", "partition": 0, "replicas": [1, 2]}}]}}',
            status=EXIT_USAGE,
        )

    async def plan(client: Client) -> MovePlan:
        return await _plan_of(client, after)

    move_partitions(
        bootstrap,
        plan,
        dry_run=dry_run,
        is_confirmed=yes,
        wait=wait,
        output=output,
        empty="the replicas are already on these brokers",
    )


async def _plan_of(client: Client, after: dict[tuple[str, int], tuple[int, ...]]) -> MovePlan:
    """Return the plan that gives these partitions these replicas. The plan does not contain partitions that already
    have their replicas.

    An unknown partition or broker ends the command with an error, so that either all moves begin or none.
    """
    from odradek.partitions import TopicPartition

    cluster = await client.admin.describe_cluster()
    registered = {broker.broker_id for broker in cluster.brokers}
    if unknown := {broker for replicas in after.values() for broker in replicas} - registered:
        fail(
            f"there is no broker {min(unknown)}: `odradek cluster info` lists the brokers",
            status=EXIT_USAGE,
        )
    before = {
        TopicPartition(topic.name, p.partition): p
        for topic in await existing_topics(client, sorted({name for name, _ in after}))
        for p in topic.partitions
    }
    if missing := after.keys() - before.keys():
        fail(f"{TopicPartition(*min(missing))} does not exist", status=EXIT_USAGE)
    changed = {
        name: after[name]
        for name, p in before.items()
        if name in after and (p.replicas != after[name] or p.adding_replicas)
    }
    return MovePlan({name: before[name].replicas for name in changed}, changed)


def _is_chosen(
    name: TopicPartition, topics: Iterable[str] | None, indexes: Iterable[int] | None
) -> bool:
    return (not topics or name.topic in topics) and (indexes is None or name.partition in indexes)


@app.command()
def moves(
    topic: Topics = None,
    wait: Wait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the moves in progress, with the bytes copied so far."""

    async def work(client: Client) -> list[dict[str, Any]]:
        await existing_topics(client, topic)
        return [
            {
                "topic": move.partition.topic,
                "partition": move.partition.partition,
                "from": [broker for broker in move.replicas if broker not in move.adding],
                "to": list(move.target),
                "waits for": [broker for broker in move.adding if broker not in move.isr],
                "copied bytes": move.copied_bytes,
                "total bytes": move.total_bytes,
            }
            for move in await client.admin.list_reassignments(include_sizes=True)
            if _is_chosen(move.partition, topic, None)
        ]

    rows = with_client(bootstrap, work)
    print_rows(rows, output, empty="no partition is moving")
    if wait and rows:
        from odradek.partitions import TopicPartition

        targets = {TopicPartition(row["topic"], row["partition"]): tuple(row["to"]) for row in rows}
        wait_for_moves(bootstrap, targets)


@app.command()
def cancel(
    topic: Topics = None,
    partition: Indexes = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Cancel moves in progress. The replicas stay where they were, and data that was copied for a cancelled move is
    deleted.
    """

    async def plan(client: Client) -> MovePlan:
        await existing_topics(client, topic)
        chosen = [
            move
            for move in await client.admin.list_reassignments()
            if _is_chosen(move.partition, topic, partition)
        ]
        return MovePlan(
            {move.partition: move.target for move in chosen},
            {
                move.partition: tuple(b for b in move.replicas if b not in move.adding)
                for move in chosen
            },
        )

    async def work(client: Client) -> None:
        from odradek_protocol.kafka.error_codes import ErrorCode

        outcomes = await client.admin.reassign_partitions(dict.fromkeys(cancelled.after))
        # A move may have ended since the list of moves was read. It is not an error that such a move cannot be
        # cancelled.
        fail_on_errors(
            outcome.error
            for outcome in outcomes
            if outcome.error is None
            or outcome.error.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        )

    if partition is not None and len(topic or ()) != 1:
        fail("--partition needs exactly one --topic", status=EXIT_USAGE)
    cancelled = with_client(bootstrap, plan)
    print_rows(cancelled.rows(), output, empty="no partition is moving")
    if dry_run and cancelled.after:
        say("dry run: no move was cancelled", is_error=True)
    if dry_run or not cancelled.after:
        return
    confirm(f"Cancel the moves of {counted(len(cancelled.after), 'partition')}?", is_confirmed=yes)
    with_client(bootstrap, work)


@app.command()
def throttle(
    rate: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Limit each broker to this many copied bytes per second, for example 50MiB.",
        ),
    ] = "",
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the limit on copied bytes.")
    ] = False,
    broker: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            metavar="ID",
            help="Change only this broker. Repeatable. [default: all brokers]",
            autocompletion=complete_brokers,
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show or change the limit on how fast brokers copy replicas.

    The limit applies to replicas that are far behind their leaders, as new replicas are. It takes effect immediately,
    also for moves in progress. Kafka's tools set the same config, follower.replication.throttled.rate.
    """
    if rate and remove:
        fail("--rate and --remove cannot be used together", status=EXIT_USAGE)
    bytes_per_s = size_bytes(rate, option="--rate") if rate else 0

    async def work(client: Client) -> list[dict[str, Any]]:
        from odradek.admin.descriptions import ConfigResource, ConfigResourceType

        cluster = await client.admin.describe_cluster()
        registered = sorted(b.broker_id for b in cluster.brokers)
        if unknown := set(broker or ()) - set(registered):
            fail(f"there is no broker {min(unknown)}", status=EXIT_USAGE)

        def resource(name: str) -> ConfigResource:
            return ConfigResource(type=ConfigResourceType.BROKER, name=name)

        async def own(name: str) -> str | None:
            config = (await client.admin.describe_configs(resource(name))).get(THROTTLE)
            return None if config is None else config.value

        changed = [str(n) for n in broker] if broker else [""]
        if remove and not broker:
            # The own value of a broker overrides the value for all brokers, so the own values must be removed, too.
            changed += [str(n) for n in registered]
        for name in changed:
            if rate:
                await client.admin.alter_configs(resource(name), set={THROTTLE: str(bytes_per_s)})
            elif remove:
                await client.admin.alter_configs(resource(name), delete=[THROTTLE])
        return [
            {"broker": n, "bytes per s": int(value or 0) or None}
            for n in (broker or registered)
            for value in [await own(str(n))]
        ]

    print_rows(with_client(bootstrap, work), output, empty="there are no brokers")
