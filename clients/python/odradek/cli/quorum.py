"""`odradek quorum`: run a controller, or show the metadata quorum. `odradek feature`: show and set feature levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.connection import with_client
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_UNHEALTHY,
    Bootstrap,
    Output,
    OutputFormat,
    fail,
    print_facts,
    print_rows,
    say,
)

if TYPE_CHECKING:
    from odradek.admin.descriptions import FeatureDescription, QuorumDescription
    from odradek.client import Client


quorum_app = typer.Typer(
    help="Run a controller, or show the controllers' quorum.",
    no_args_is_help=True,
)


@quorum_app.command()
def status(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE) -> None:
    """Show the leader and the progress of each controller.

    The leader of the metadata quorum is shown with its term and commit offset.
    """

    async def work(client: Client) -> QuorumDescription:
        return await client.admin.describe_quorum()

    quorum = with_client(bootstrap, work)
    facts = {
        "leader": quorum.leader_id,
        "term": quorum.term,
        "commit offset": quorum.commit_offset,
        "answered by": quorum.answered_by,
    }
    rows = [
        {
            "controller": voter.controller_id,
            "endpoint": voter.endpoint,
            "host": voter.host or None,
            "log end": voter.log_end,
            "behind": None
            if voter.log_end is None
            else max(0, quorum.commit_offset - voter.log_end),
            "heard ms ago": voter.heard_ms_ago,
        }
        for voter in quorum.voters
    ]
    if output is OutputFormat.JSON:
        print_facts({**facts, "voters": rows}, output)
    else:
        print_facts(facts, output)
        print()
        print_rows(rows, output, empty="no voters")
    if quorum.leader_id < 0:
        fail(
            "the metadata quorum has no leader: start controllers until a majority of the voters is up",
            status=EXIT_UNHEALTHY,
        )


feature_app = typer.Typer(
    help="Show feature levels, and set them after an upgrade.",
    no_args_is_help=True,
)


@feature_app.command("list")
def list_features(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE
) -> None:
    """Show the level of each feature.

    The output also shows the levels that all processes support, and which nodes prevent a higher level.
    """

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


@feature_app.command("set")
def set_level(
    name: Annotated[str, typer.Argument(help="Name of the feature, such as metadata.version.")],
    level: Annotated[
        int,
        typer.Argument(min=0, max=2**15 - 1, help="New level of the feature."),
    ],
    allow_downgrade: Annotated[
        bool,
        typer.Option("--allow-downgrade", help="Allow a level that is lower than the current one."),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set the level of a feature. Every broker and every controller must support the level."""

    async def work(client: Client) -> None:
        await client.admin.update_feature(name, level, allow_downgrade=allow_downgrade)

    with_client(bootstrap, work)
    say(f"{name} is now at level {level}")
