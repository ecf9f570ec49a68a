"""Changes of configs as options say them: --set NAME=VALUE, --delete NAME."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odradek.cli.connection import with_client
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_USAGE,
    Bootstrap,
    Output,
    OutputFormat,
    fail,
    print_rows,
)

if TYPE_CHECKING:
    from odradek.admin.descriptions import ConfigResource
    from odradek.client import Client


Set = Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE; repeat it.")]
Delete = Annotated[
    list[str] | None, typer.Option("--delete", help="NAME, back to its default; repeat it.")
]


def named_values(texts: Sequence[str] | None) -> dict[str, str]:
    """Of NAME=VALUE each; ends the command for what is not."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"{text!r}: write NAME=VALUE", status=EXIT_USAGE)
        found[name.strip()] = value
    return found


async def change_configs(
    client: Client, resource: ConfigResource, changes: Mapping[str, str], gone: Sequence[str]
) -> None:
    """All or none. Ends the command for a name in `gone` that no config has."""
    if gone:
        known = await client.admin.describe_configs(resource)
        for name in gone:
            if name not in known:
                near = get_close_matches(name, known, 1)
                fail(
                    f"{name} is no {resource.type.name.lower()} config"
                    + (f"; did you mean {near[0]}?" if near else "")
                )
    await client.admin.alter_configs(resource, set=changes, delete=gone)


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
