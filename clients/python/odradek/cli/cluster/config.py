"""`odradek cluster config`: what is set for all brokers, or for one, while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from odradek.cli.cluster.config_changes import Delete, Set, change_configs, named_values
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Output,
    OutputFormat,
    print_rows,
)
from odradek.cli.session import with_client

if TYPE_CHECKING:
    from odradek.client import Client


def config(
    set_: Set = None,
    delete: Delete = None,
    broker: Annotated[
        int | None, typer.Option(min=0, help="Of this broker; none: of all brokers.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="What is not set, too.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show or change what is set for all brokers, or for one."""
    changes, gone = named_values(set_), delete or []

    async def work(client: Client) -> list[dict[str, Any]]:
        from odradek.admin.descriptions import ConfigResource, ConfigResourceType, ConfigSource

        name = "" if broker is None else str(broker)
        resource = ConfigResource(type=ConfigResourceType.BROKER, name=name)
        if changes or gone:
            await change_configs(client, resource, changes, gone)
        found = await client.admin.describe_configs(resource)
        return [
            {"config": one.name, "value": one.value, "from": one.source.name.lower()}
            for one in sorted(found.values(), key=lambda one: one.name)
            if every or one.source is not ConfigSource.BUILT_IN
        ]

    print_rows(with_client(bootstrap, work), output, empty="nothing is set; --all shows defaults")
