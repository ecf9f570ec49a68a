"""Changes of configs as options say them: --set NAME=VALUE, --delete NAME."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.output import EXIT_USAGE, fail

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
