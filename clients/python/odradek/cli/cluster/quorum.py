"""`odradek quorum`: run a controller, or see how the quorum is. Without a subcommand it runs one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

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
    from odradek.admin.descriptions import QuorumDescription
    from odradek.client import Client

app = typer.Typer(
    help="Run a controller, or see how the quorum is.",
    epilog="`odradek quorum --config FILE` runs a controller; with --help it lists every setting.",
    no_args_is_help=True,
)


@app.command()
def status(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE) -> None:
    """Leader, term, committed offset, and how far each member is."""

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
        fail("the quorum has no leader: a majority of the voters must be up", status=EXIT_UNHEALTHY)
