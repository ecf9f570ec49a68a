"""`odradek cluster`: brokers, health, configs, replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from odradek.cli.cluster.config import config
from odradek.cli.cluster.health import health
from odradek.cli.cluster.spread import spread
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
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
    help="Show brokers and health, change configs, spread replicas.", no_args_is_help=True
)
app.command()(health)
app.command()(spread)
app.command()(config)


@app.command()
def info(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE) -> None:
    """Brokers, where they listen, and the active controller."""

    async def work(client: Client) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        cluster = await client.admin.describe_cluster()
        rooms = await _room(client)
        facts = {
            "cluster": cluster.cluster_id,
            "active controller": cluster.active_controller_id,
            "controller epoch": cluster.controller_epoch,
        }
        rows = [
            {
                "broker": broker.broker_id,
                "epoch": broker.broker_epoch,
                "rack": broker.rack or None,
                "fenced": broker.is_fenced,
                "leads": broker.leader_count,
                "free bytes": rooms.get(broker.broker_id),
                "listeners": [f"{li.name}://{li.host}:{li.port}" for li in broker.listeners],
            }
            for broker in sorted(cluster.brokers, key=lambda broker: broker.broker_id)
        ]
        return facts, rows

    facts, rows = with_client(bootstrap, work)
    if output is OutputFormat.JSON:
        print_facts({**facts, "brokers": rows}, output)
        return
    print_facts(facts, output)
    print()
    print_rows(rows, output, empty="no brokers")


async def _room(client: Client) -> dict[int, int | None]:
    """Free bytes of each broker's volume; empty where the caller may not know, or brokers are too old."""
    from odradek.errors import AuthorizationFailed, UnsupportedOperation

    try:
        directories = await client.admin.describe_log_dirs()
    except (AuthorizationFailed, UnsupportedOperation):
        return {}
    return {directory.broker_id: directory.usable_bytes for directory in directories}


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
