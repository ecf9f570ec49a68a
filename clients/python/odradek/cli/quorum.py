"""`odradek quorum`: run a controller, or see how the quorum is. Without a subcommand it runs one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    from odradek.client import Client

app = typer.Typer(
    help="Run a controller (`odradek quorum --config FILE`), or see how the quorum is.",
    no_args_is_help=True,
)


@app.command()
def status(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE) -> None:
    """Leader, term, committed offset, and how far each member is."""

    async def work(client: Client) -> tuple[str, ...]:
        return (await client.admin.describe_cluster()).controller_endpoints

    endpoints = with_client(bootstrap, work)
    facts, rows = _ask(endpoints)
    if output is OutputFormat.JSON:
        print_facts({**facts, "voters": rows}, output)
        return
    print_facts(facts, output)
    print()
    print_rows(rows, output, empty="no voters")


def _ask(endpoints: tuple[str, ...]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Of the member that leads, or else of any."""
    import grpc

    from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
    from odradek_protocol.rpc.v1 import controller_service_pb2_grpc as rpc

    best = None
    for endpoint in endpoints:
        with grpc.insecure_channel(endpoint) as channel:
            stub = rpc.ControllerServiceStub(channel)
            try:
                told = stub.DescribeQuorum(pb.DescribeQuorumRequest(), timeout=2)
            except grpc.RpcError:
                continue
        if best is None or told.answered_by == told.leader_id:
            best = told
    if best is None:
        fail(f"no controller answers at {', '.join(endpoints) or '(none)'}", status=EXIT_UNHEALTHY)
    facts = {
        "leader": best.leader_id,
        "term": best.term,
        "commit offset": best.commit_offset,
        "answered by": best.answered_by,
    }
    rows = [
        {
            "controller": voter.controller_id,
            "endpoint": voter.endpoint,
            "log end": voter.log_end,
            "behind": max(0, best.commit_offset - voter.log_end) if voter.log_end >= 0 else None,
            "heard ms ago": voter.last_heard_ms if voter.last_heard_ms >= 0 else None,
        }
        for voter in best.voters
    ]
    return facts, rows
