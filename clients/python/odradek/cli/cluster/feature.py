"""`odradek feature`: which levels of the features the cluster uses, and raising them after an upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, print_rows
from odradek.cli.session import with_client

if TYPE_CHECKING:
    from odradek.admin.descriptions import FeatureDescription
    from odradek.client import Client

app = typer.Typer(
    help="Show feature levels; raise them once every process has been upgraded.",
    no_args_is_help=True,
)


@app.command("list")
def list_features(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE
) -> None:
    """Level in use, the levels that the cluster's members support, and who holds a higher one back."""

    async def work(client: Client) -> list[FeatureDescription]:
        return await client.admin.describe_features()

    rows = [
        {
            "feature": feature.name,
            "level": feature.level,
            "supported": f"{feature.level_min}-{feature.level_max}",
            "can be raised to": feature.level_common,
            "held back by": ", ".join(feature.held_back_by),
        }
        for feature in with_client(bootstrap, work)
    ]
    print_rows(rows, output, empty="no features")


@app.command("set")
def set_level(
    name: Annotated[
        str, typer.Argument(help="Name of the feature, metadata.version for instance.")
    ],
    level: Annotated[int, typer.Argument(min=0, help="The level to use from now on.")],
    allow_downgrade: Annotated[
        bool, typer.Option("--allow-downgrade", help="Lower the level, too.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change a level. It is refused unless every broker and every controller supports it."""

    async def work(client: Client) -> None:
        await client.admin.update_feature(name, level, allow_downgrade=allow_downgrade)

    with_client(bootstrap, work)
    print(f"{name} is at level {level}")
