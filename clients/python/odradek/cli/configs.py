"""The options --set and --delete that change configs, `odradek cluster config` and `odradek group config`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odradek.cli.connection import (
    complete_brokers,
    complete_groups,
    with_client,
)
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


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set this config to this value. Repeatable."),
]
Delete = Annotated[
    list[str] | None,
    typer.Option("--delete", metavar="NAME", help="Reset this config to its default. Repeatable."),
]


def named_values(texts: Sequence[str] | None) -> dict[str, str]:
    """Split texts of the form NAME=VALUE; any other text ends the command with an error."""
    values = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"{text!r} does not have the form NAME=VALUE", status=EXIT_USAGE)
        values[name.strip()] = value
    return values


async def change_configs(
    client: Client, resource: ConfigResource, changes: Mapping[str, str], deleted: Sequence[str]
) -> None:
    """Change all configs, or none if a change is refused. A name in `deleted` that is not a config of the resource ends
    the command with an error.
    """
    if deleted:
        configs = await client.admin.describe_configs(resource)
        kind = resource.type.name.lower()
        for name in deleted:
            if name not in configs:
                if near := get_close_matches(name, configs, 1):
                    hint = f"did you mean {near[0]}?"
                elif kind == "topic":  # No command lists all configs of a topic.
                    hint = f"the configs of a topic are {', '.join(sorted(configs))}"
                else:
                    hint = "--all lists the configs"
                fail(f"there is no {kind} config {name}: {hint}")
    await client.admin.alter_configs(resource, set=changes, delete=deleted)
    note_inert(resource.type, changes)


def note_inert(resource_type: int, names: Iterable[str]) -> None:
    """Print on stderr which of these configs have no effect in Odradek."""
    from odradek_protocol.metadata.config_definitions import WITHOUT_EFFECT
    from odradek_protocol.metadata.configs import definitions
    from odradek_protocol.metadata.records import ConfigResourceType

    definitions_by_name = definitions(ConfigResourceType(resource_type))
    for name in names:
        definition = definitions_by_name.get(name)
        if definition is not None and definition.documentation.startswith(WITHOUT_EFFECT):
            print(f"odradek: {name}: {definition.documentation}", file=sys.stderr)


def group_config(
    group: Annotated[
        str, typer.Argument(help="Name of the consumer group.", autocompletion=complete_groups)
    ],
    set_: Set = None,
    delete: Delete = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also show configs that have their default value.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show or change the configs of a consumer group. Without --set and --delete, they are shown."""
    from odradek.admin.descriptions import ConfigResource, ConfigResourceType

    resource = ConfigResource(type=ConfigResourceType.GROUP, name=group)
    _change_and_show(resource, set_, delete, every=every, bootstrap=bootstrap, output=output)


def config(
    set_: Set = None,
    delete: Delete = None,
    broker: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="ID",
            help="Id of the broker whose configs to show or change. [default: the configs of all brokers]",
            autocompletion=complete_brokers,
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also show configs that have their default value.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show or change the dynamic configs of all brokers, or of one. Without --set and --delete, they are shown."""
    from odradek.admin.descriptions import ConfigResource, ConfigResourceType

    name = "" if broker is None else str(broker)
    resource = ConfigResource(type=ConfigResourceType.BROKER, name=name)
    _change_and_show(resource, set_, delete, every=every, bootstrap=bootstrap, output=output)


def _change_and_show(
    resource: ConfigResource,
    set_: Sequence[str] | None,
    delete: Sequence[str] | None,
    *,
    every: bool,
    bootstrap: str,
    output: OutputFormat,
) -> None:
    changes, deleted = named_values(set_), delete or []

    async def work(client: Client) -> list[dict[str, Any]]:
        from odradek.admin.descriptions import ConfigSource

        if changes or deleted:
            await change_configs(client, resource, changes, deleted)
        configs = await client.admin.describe_configs(resource)
        return [
            {"config": value.name, "value": value.value, "from": value.source.name.lower()}
            for value in sorted(configs.values(), key=lambda value: value.name)
            if every or value.source is not ConfigSource.BUILT_IN
        ]

    print_rows(
        with_client(bootstrap, work),
        output,
        empty="no config is set; --all also shows the defaults",
    )
