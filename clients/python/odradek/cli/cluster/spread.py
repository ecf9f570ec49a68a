"""`odradek cluster spread`: move replicas on to brokers that came, and off those that shall go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_USAGE,
    Bootstrap,
    Output,
    OutputFormat,
    fail,
    print_rows,
)
from odradek.cli.session import with_client

if TYPE_CHECKING:
    from odradek.client import Client


def spread(
    over: Annotated[str, typer.Option(help="Brokers that shall hold the replicas: 1,2,3,4.")],
    topic: Annotated[list[str] | None, typer.Option(help="Only these; repeat it.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would move.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Even out replicas and leaderships over brokers. With as few moves as that takes."""
    try:
        brokers = [int(part) for part in over.split(",")]
    except ValueError:
        fail(f"--over {over}: broker ids with commas, as 1,2,3", status=EXIT_USAGE)

    async def work(client: Client) -> list[dict[str, Any]]:
        from odradek.admin.spreading import spread as plan
        from odradek.errors import UnknownTopic

        cluster = await client.admin.describe_cluster()
        racks = {one.broker_id: one.rack for one in cluster.brokers if one.rack}
        if strange := set(brokers) - {one.broker_id for one in cluster.brokers}:
            fail(f"there is no broker {min(strange)}", status=EXIT_USAGE)
        topics = await client.admin.list_topics(include_internal=True)
        if unknown := set(topic or ()) - {one.name for one in topics}:
            raise UnknownTopic(f"topic {min(unknown)!r} does not exist")
        chosen = [one for one in topics if not topic or one.name in topic]
        before = {(one.name, p.partition): p.replicas for one in chosen for p in one.partitions}
        for (name, index), found in sorted(before.items()):
            if len(found) > len(set(brokers)):
                fail(
                    f"partition {index} of {name} has {len(found)} replicas: --over takes as many"
                    " brokers",
                    status=EXIT_USAGE,
                )
        after = plan(before, brokers, racks)
        if after and not dry_run:
            for outcome in await client.admin.reassign_partitions(after):
                if outcome.error is not None:
                    raise outcome.error
        return [
            {"topic": key[0], "partition": key[1], "from": list(before[key]), "to": list(found)}
            for key, found in sorted(after.items())
        ]

    print_rows(with_client(bootstrap, work), output, empty="every broker has its share")
