"""`odradek dev`: a whole cluster on this machine, until Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from odradek.embedded import EmbeddedCluster


def dev(
    brokers: Annotated[int, typer.Option(min=1, max=32, help="How many brokers.")] = 3,
    controllers: Annotated[int, typer.Option(min=1, max=7, help="How many controllers.")] = 3,
    gateways: Annotated[int, typer.Option(min=0, max=8, help="How many gateways.")] = 1,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data is kept; none: a temporary directory.")
    ] = None,
    base_port: Annotated[
        int, typer.Option(help="First of the ports to use; 0: free ports.", min=0, max=65_000)
    ] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE of any broker setting, by Kafka's name."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON when the cluster accepts writes.")
    ] = False,
    exit_with_parent: Annotated[
        bool, typer.Option(help="Stop at end of file on standard input.")
    ] = False,
) -> None:
    """Run a whole cluster in the foreground. It stops, children too, on Ctrl-C or SIGTERM.

    Kill what you like of it: the rest goes on, and how to start a process again is printed.
    """
    from odradek.embedded import ClusterPlan, EmbeddedCluster

    plan = ClusterPlan(
        brokers=brokers,
        controllers=controllers,
        gateways=gateways,
        data_dir=data_dir,
        base_port=base_port,
        settings=tuple(settings or ()),
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if exit_with_parent:
        threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    with EmbeddedCluster(plan) as cluster:
        cluster.start()
        cluster.wait_ready()
        if as_json:
            print(json.dumps(cluster.describe()), flush=True)
        else:
            _tell(cluster)
        if _watch(cluster, stop):
            return
    raise typer.Exit(1)


def _watch(cluster: EmbeddedCluster, stop: threading.Event) -> bool:
    """Whether it was told to stop; false when no process is left.

    A process that ends is told of, and the others go on: to see that is what clusters are killed for.
    """
    left = cluster.children()
    while not stop.wait(0.2):
        for child in [one for one in left if not one.is_running]:
            left.remove(child)
            print(
                f"odradek: {child.name} ended with status {child.exit_status()}, the others go on;"
                f" its log: {child.log_path}; to start it again: {shlex.join(child.command)}",
                file=sys.stderr,
                flush=True,
            )
        if not left:
            print("odradek: no process of the cluster is left", file=sys.stderr)
            return False
    return True


def _stop_at_end_of_input(stop: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):  # not sys.stdin, whose lock this thread would hold at the end
            pass
    stop.set()


def _tell(cluster: EmbeddedCluster) -> None:
    from odradek.cli.output import console

    told = cluster.describe()
    out = console()
    out.print("[bold]The cluster accepts writes.[/bold] Ctrl-C stops it.")
    out.print(f"  gRPC (SDK, CLI)  {told['grpc']}")
    out.print(f"  Kafka clients    {told['kafka'] or '-'}")
    out.print(f"  REST gateway     {told['gateway'] or '-'}")
    out.print(f"  data             {told['data_dir']}")
    out.print("\nIn another terminal:")
    out.print(f"  export ODRADEK_BOOTSTRAP={told['grpc']}")
    out.print("  odradek topic create greetings --partitions 3 --replicas 3")
    out.print("  echo hello | odradek produce greetings")
    out.print("  odradek consume greetings --from-beginning --exit-at-end")
