"""`odradek transaction`: list, describe and abort transactions."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from odradek.cli.connection import (
    chosen_partitions,
    complete_topics,
    complete_transactional_ids,
    with_client,
)
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Output,
    OutputFormat,
    canonical,
    counted,
    print_facts,
    print_rows,
    printable,
    say,
)
from odradek.cli.times import duration_ms
from odradek.partitions import LATEST
from odradek_protocol.identity import SLOT_SEPARATOR

if TYPE_CHECKING:
    from odradek.client import Client
    from odradek.consumer.consumer import Consumer
    from odradek.partitions import TopicPartition

HINTS_MAX: Final = 5
"""The most partitions with an open transaction that `odradek consume` names. Further partitions are only counted."""
ESCAPED_SEPARATOR: Final = printable(SLOT_SEPARATOR)
TRANSACTION_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)
app = typer.Typer(help="List, describe and end transactions.", no_args_is_help=True)
TransactionalId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Transactional id of the producer.",
        autocompletion=complete_transactional_ids,
    ),
]


@app.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="List only transactional ids in this state, such as Ongoing. Repeatable.",
        ),
    ] = None,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="List only transactions that have been open for longer than this, such as 10m.",
        ),
    ] = "",
    match: Annotated[
        str,
        typer.Option(
            metavar="PATTERN",
            help="List only transactional ids that match this regular expression as a whole.",
        ),
    ] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List transactional ids with the states of their transactions."""
    states = [canonical("--state", name, TRANSACTION_STATES) for name in state or ()]
    older_than_ms = duration_ms(older_than, option="--older-than") if older_than else -1

    async def work(client: Client) -> list[dict[str, Any]]:
        listings = await client.admin.transactions.list(
            states=states, older_than_ms=older_than_ms, pattern=match
        )
        return [
            {
                "transactional_id": listing.transactional_id,
                "state": listing.state,
                "producer_id": listing.producer_id,
            }
            for listing in listings
        ]

    rows = with_client(bootstrap, work)
    print_rows(rows, output, empty="there are no transactional ids")
    staged = {
        row["transactional_id"].partition(SLOT_SEPARATOR)[0]
        for row in rows
        if SLOT_SEPARATOR in row["transactional_id"]
    }
    if staged and output is OutputFormat.TABLE:
        say(
            f"odradek: ids with {ESCAPED_SEPARATOR} belong to the tasks of staged writes (Spark queries):"
            f" `odradek transaction steps {shlex.quote(min(staged))}`, for example, shows the steps of such a write",
            is_error=True,
        )


def _id_of(text: str) -> str:
    """Return the transactional id that `odradek transaction list` prints as `text`."""
    return text.replace(ESCAPED_SEPARATOR, SLOT_SEPARATOR)


@app.command()
def describe(
    transactional_id: TransactionalId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show a transactional id and its open transaction.

    The partitions of the open transaction are listed.
    """

    async def work(client: Client) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        described = await client.admin.transactions.describe(_id_of(transactional_id))
        facts = {
            "transactional_id": described.transactional_id,
            "state": described.state,
            "producer_id": described.producer_id,
            "producer_epoch": described.producer_epoch,
            "timeout_ms": described.timeout_ms,
            "started_ms": described.started_ms,
        }
        return facts, [
            {"topic": name.topic, "partition": name.partition} for name in described.partitions
        ]

    facts, rows = with_client(bootstrap, work)
    if output is OutputFormat.JSON:
        print_facts({**facts, "partitions": rows}, output)
        return
    print_facts(facts, output)
    print()
    print_rows(rows, output, empty="no transaction of this id is open")


@app.command()
def abort(
    transactional_id: TransactionalId,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Abort the transaction even if it is a prepared task of a staged write (Spark).",
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Abort the open transaction of a transactional id.

    Consumers with read_committed skip the records of the transaction. Its producer may begin another transaction.
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        await client.admin.transactions.abort(_id_of(transactional_id), force=force)
        return [{"transactional_id": transactional_id, "aborted": True}]

    print_rows(with_client(bootstrap, work), output, empty="")


@app.command()
def steps(
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="Name of the staged write. For a Spark query: transactionalIdPrefix followed by the query's id.",
        ),
    ],
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Forget which steps (batches of a Spark query) are complete, so that the query can restart from an"
            " older checkpoint. The query then writes the records of these steps a second time.",
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the steps of a staged write.

    A staged write is how a Spark query writes exactly once. The last complete step, the number of tasks that it
    committed, and the open tasks are shown. If this number is 0, the step was completed without records: it was
    aborted, or there was nothing to write. The id of a query is in the file `metadata` of its checkpoint.
    """

    async def work(client: Client) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if forget:
            await client.admin.transactions.forget_steps(query)
        described = await client.admin.transactions.steps(query)
        facts = {
            "query": described.query,
            "last_step": described.last_step,
            # Without a complete step, 0 would seem to contradict the open tasks below.
            "committed_tasks": None if described.last_step is None else described.task_count,
            "completed_ms": described.completed_ms,
        }
        return facts, [
            {
                "step": task.step,
                "task": task.name,
                "prepared": task.is_prepared,
                "transactional_id": task.transactional_id,
            }
            for task in described.open_tasks
        ]

    facts, rows = with_client(bootstrap, work)
    if output is OutputFormat.JSON:
        print_facts({**facts, "open_tasks": rows}, output)
        return
    print_facts({**facts, "open_tasks": len(rows)}, output)
    if rows:
        print()
        print_rows(rows, output, empty="")


@app.command()
def producers(
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topics),
    ],
    partition: Annotated[
        int | None,
        typer.Argument(metavar="PARTITION", help="List only the producers of this partition."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List the producers of a topic, with their open transactions."""

    async def work(client: Client) -> list[dict[str, Any]]:
        chosen = None if partition is None else [partition]
        # The brokers do not report a partition that does not exist.
        partitions = [index for _, index in await chosen_partitions(client, [topic], chosen)]
        return [
            {
                "partition": producer.partition.partition,
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
                "last_sequence": producer.last_sequence,
                "last_timestamp_ms": producer.last_timestamp_ms,
                "transaction_start": producer.transaction_start_offset,
            }
            for producer in await client.admin.transactions.producers(topic, partitions)
        ]

    print_rows(with_client(bootstrap, work), output, empty="no producers")


@app.command("find-hanging")
def find_hanging(
    topic: Annotated[
        str,
        typer.Option(
            metavar="TOPIC",
            help="Search only this topic. [default: all topics]",
            autocompletion=complete_topics,
        ),
    ] = "",
    abort: Annotated[bool, typer.Option("--abort", help="End the hanging transactions.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Find transactions that hang, or whose markers were lost.

    A transaction hangs if it is open, but no coordinator will end it. Transactions that ended differently in different
    partitions are listed, too. The cause of all these faults is an unclean leader election, or a power failure of all
    replicas. Brokers end hanging transactions automatically unless `transaction.hanging.abort.enable` is false.
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        transactions = client.admin.transactions
        if topic:
            await client.admin.describe_topic(topic)  # Raises UnknownTopic.
        findings = await transactions.find_hanging(topic=topic)
        rows = []
        for transaction in findings.transactions:
            state = transaction.state.value
            if transaction.hangs and abort:
                await transactions.abort_hanging(transaction.partition, transaction.producer_id)
                state = "ended"
            rows.append(
                {
                    "finding": "hanging" if transaction.hangs else "open",
                    "partition": str(transaction.partition),
                    "producer_id": transaction.producer_id,
                    "producer_epoch": transaction.producer_epoch,
                    "first_offset": transaction.first_offset,
                    "state": state,
                }
            )
        for incident in findings.incidents:
            outcome = "committed" if incident.is_commit else "aborted"
            rows.append(
                {
                    "finding": incident.kind,
                    "partition": str(incident.partition),
                    "producer_id": incident.producer_id,
                    "producer_epoch": incident.producer_epoch,
                    "first_offset": incident.first_offset,
                    "state": f"{outcome} elsewhere" if incident.kind == "torn" else outcome,
                }
            )
        return rows

    print_rows(with_client(bootstrap, work), output, empty="no transaction hangs")


async def open_transaction_hints(
    client: Client, consumer: Consumer, stops: dict[TopicPartition, int]
) -> list[str]:
    """Return a sentence for each partition in which a read_committed consumer has read up to an open transaction.

    `stops` has the stop offsets of the partitions; it is empty for a member of a group. If the brokers do not respond,
    the result is empty: this is no error of the command, which has printed all records that it could read.
    """
    from odradek.errors import OdradekError

    names = list(stops) or list(consumer.assignment())
    try:
        positions = {name: await consumer.position(name) for name in names}
        stable = await client.admin.list_offsets(dict.fromkeys(names, LATEST), read_committed=True)
        ends = await client.admin.list_offsets(dict.fromkeys(names, LATEST))
        blocked = [
            name
            for name in names
            if positions[name] == stable[name].offset < ends[name].offset
            and stops.get(name, positions[name]) >= positions[name]
        ]
        hints = []
        for name in blocked[:HINTS_MAX]:
            commands = await _commands_for_transaction(client, name, positions[name])
            if commands:
                behind = counted(ends[name].offset - positions[name], "record")
                hints.append(
                    f"{name}: stopped at offset {positions[name]}, where an open transaction begins; up to {behind}"
                    f" from this offset on, including those of other producers, can be read after the transaction"
                    f" ends: {commands}"
                )
    except OdradekError:
        return []
    if len(blocked) > HINTS_MAX:
        more = counted(len(blocked) - HINTS_MAX, "more partition")
        hints.append(f"reading stopped at open transactions in {more}, too")
    return hints


async def _commands_for_transaction(client: Client, name: TopicPartition, offset: int) -> str:
    """Return a text with the commands for the open transaction that begins at `offset`; "" if it has ended."""
    from odradek.errors import OdradekError

    transactions = client.admin.transactions
    shows_producers = f"`odradek transaction producers {name.topic} {name.partition}` shows it"
    try:
        producer_ids = {
            producer.producer_id
            for producer in await transactions.producers(name.topic, [name.partition])
            if producer.transaction_start_offset == offset
        }
    except OdradekError:
        return shows_producers
    if not producer_ids:
        return ""
    try:
        listings = await transactions.list(states=["Ongoing"])
    except OdradekError:
        return shows_producers
    for listing in listings:
        if listing.producer_id in producer_ids:
            query, separator, _ = listing.transactional_id.partition(SLOT_SEPARATOR)
            if separator:
                return f"`odradek transaction steps {shlex.quote(query)}` shows the staged write that it belongs to"
            quoted = shlex.quote(listing.transactional_id)
            return f"`odradek transaction describe {quoted}` shows it, and `odradek transaction abort {quoted}` ends it"
    return shows_producers
