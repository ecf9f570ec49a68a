"""`odradek cluster`: who is there, and whether all is well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from odradek.cli.cluster.config import config
from odradek.cli.cluster.spread import spread
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_UNHEALTHY,
    Bootstrap,
    Output,
    OutputFormat,
    fail,
    print_facts,
    print_rows,
)
from odradek.cli.session import with_client

if TYPE_CHECKING:
    from odradek.client import Client

app = typer.Typer(
    help="Who is there, and whether all is well; spread replicas.", no_args_is_help=True
)
app.command()(spread)
app.command()(config)


@app.command()
def info(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE) -> None:
    """Brokers, where they listen, and the active controller."""

    async def work(client: Client) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        cluster = await client.admin.describe_cluster()
        facts = {
            "cluster": cluster.cluster_id,
            "active controller": cluster.active_controller_id,
            "controller epoch": cluster.controller_epoch,
        }
        rows = [
            {
                "broker": one.broker_id,
                "epoch": one.broker_epoch,
                "rack": one.rack or None,
                "fenced": one.is_fenced,
                "leads": one.leader_count,
                "listeners": [f"{li.name}://{li.host}:{li.port}" for li in one.listeners],
            }
            for one in sorted(cluster.brokers, key=lambda one: one.broker_id)
        ]
        return facts, rows

    facts, rows = with_client(bootstrap, work)
    if output is OutputFormat.JSON:
        print_facts({**facts, "brokers": rows}, output)
        return
    print_facts(facts, output)
    print()
    print_rows(rows, output, empty="no brokers")


@app.command()
def health(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE) -> None:
    """Status 0 when all is well, else 3.

    Not well: partitions without a leader or under-replicated, fenced brokers, no active controller.
    """

    async def work(client: Client) -> dict[str, Any]:
        cluster = await client.admin.describe_cluster()
        topics = await client.admin.list_topics(include_internal=True)
        partitions = [p for topic in topics for p in topic.partitions]
        facts: dict[str, Any] = {
            "brokers": sum(not one.is_fenced for one in cluster.brokers),
            "fenced brokers": sum(one.is_fenced for one in cluster.brokers),
            "partitions": len(partitions),
            "without leader": sum(p.leader_id < 0 for p in partitions),
            "under-replicated": sum(len(p.isr) < len(p.replicas) for p in partitions),
            "active controller": cluster.active_controller_id,
        }
        bad = facts["fenced brokers"] or facts["without leader"] or facts["under-replicated"]
        facts["healthy"] = not bad and facts["active controller"] >= 0
        if facts["healthy"]:  # who has no rights sees no partitions, and all would seem well
            await client.admin.describe_quorum()
        return facts

    facts = with_client(bootstrap, work)
    print_facts(facts, output)
    if not facts["healthy"]:
        raise typer.Exit(EXIT_UNHEALTHY)


@app.command()
def unregister(
    broker: Annotated[int, typer.Argument(help="Its id.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Forget a stopped broker that will not come back. It must hold no replica."""

    async def work(client: Client) -> int:
        topics = await client.admin.list_topics(include_internal=True)
        held = sum(broker in p.replicas for topic in topics for p in topic.partitions)
        if not held:
            await client.admin.unregister_broker(broker)
        return held

    if held := with_client(bootstrap, work):
        fail(
            f"broker {broker} has replicas of {held} partitions: move them first,"
            " `odradek cluster spread --over` the others"
        )
    print(f"broker {broker} is no longer registered")
