"""`odradek quorum | broker | gateway | pipeline`: start the process of that name in this one's place."""

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

from odradek.cli.output import EXIT_ERROR, fail
from odradek.extras import what_is_missing

if TYPE_CHECKING:
    from odradek.embedded import EmbeddedCluster


_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_commands(app: typer.Typer) -> None:
    """Add a command for each service; all arguments are the service's own."""
    _add(app, "broker", "odradek_broker", "server", "Run a broker in the foreground.")
    _add(app, "gateway", "odradek_gateway", "server", "Run a REST gateway in the foreground.")
    _add(
        app,
        "demo",
        "odradek_demo",
        "demo",
        "Send real flights through a cluster while two of its processes are killed.",
    )
    _add(app, "pipeline", "pyspark_odradek.pipelines", "spark", "Run a Spark pipeline by name.")


def run_module(module: str, extra: str, arguments: list[str]) -> None:
    """Replace this process by `python -m module`; says which extra is missing where it is not installed."""
    if missing := what_is_missing(module, extra):
        fail(missing, status=EXIT_ERROR)
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def _add(app: typer.Typer, name: str, module: str, extra: str, help_text: str) -> None:
    def run(context: typer.Context) -> None:
        run_module(module, extra, context.args)

    app.command(name, help=help_text, context_settings=_PASS_ON)(run)


def dev(
    brokers: Annotated[int, typer.Option(min=1, max=32, help="How many brokers.")] = 3,
    controllers: Annotated[int, typer.Option(min=1, max=7, help="How many controllers.")] = 3,
    gateways: Annotated[int, typer.Option(min=0, max=8, help="How many gateways.")] = 1,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data is kept; none: a temporary directory.")
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            help="First of the ports to use; 0: any free ports."
            " Without it 9090 (gRPC), 9092 (Kafka), 8082 (HTTP) and so on, if they are free.",
            min=0,
            max=65_000,
        ),
    ] = None,
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
        base_port=base_port or 0,
        prefers_usual_ports=base_port is None,
        settings=_with_replication(settings or [], brokers),
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if exit_with_parent:
        threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    with EmbeddedCluster(plan) as cluster:
        if not as_json:
            _announce(cluster)
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
        for child in [child for child in left if not child.is_running]:
            left.remove(child)
            print(
                f"odradek: {child.name} {child.describe_exit()}, the others go on;"
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


def _with_replication(settings: list[str], brokers: int) -> tuple[str, ...]:
    """The settings, with a replication factor for topics that name none: any broker may be killed then."""
    name = "default.replication.factor="
    if brokers == 1 or any(setting.startswith(name) for setting in settings):
        return tuple(settings)
    return (*settings, f"{name}{min(3, brokers)}")


def _announce(cluster: EmbeddedCluster) -> None:
    """Say at once what is being started, and where its data goes."""
    plan = cluster.plan
    kept = "removed at the end; --data-dir DIR keeps it" if cluster.is_temporary else "kept"
    print(
        f"Starting {plan.controllers} controllers, {plan.brokers} brokers and {plan.gateways} gateways;"
        f" data in {cluster.data_dir} ({kept})",
        flush=True,
    )
    if plan.prefers_usual_ports and not cluster.has_usual_ports:
        print("The usual ports (9090, 9092, 8082, ...) are in use; taking free ones", flush=True)


def _tell(cluster: EmbeddedCluster) -> None:
    from odradek.cli.output import OutputFormat, console, print_rows

    addresses = cluster.describe()
    out = console()
    out.print("[bold]The cluster accepts writes.[/bold] Ctrl-C stops it.\n")
    rows = [
        {"process": name, "pid": pid, **_listeners_of(name, cluster)}
        for name, pid in addresses["pids"].items()
    ]
    print_rows(rows, OutputFormat.TABLE, empty="")
    out.print("\nIn another terminal:")
    if not cluster.has_usual_ports:
        out.print(f"  export ODRADEK_BOOTSTRAP={addresses['grpc']}")
    replicas = min(3, cluster.plan.brokers)
    out.print(f"  odradek topic create greetings --partitions 3 --replicas {replicas}")
    out.print("  echo hello | odradek produce greetings")
    out.print("  odradek consume greetings --from-beginning --exit-at-end")
    out.print(f"Kafka clients: bootstrap.servers={addresses['kafka']}")


def _listeners_of(name: str, cluster: EmbeddedCluster) -> dict[str, str | None]:
    """Where a process listens, by protocol."""
    addresses = cluster.describe()
    kind, _, number = name.rpartition("-")
    index = int(number) - 1
    is_broker = kind == "broker"
    return {
        "gRPC (SDK, CLI)": addresses["grpc"].split(",")[index] if is_broker else None,
        "Kafka": addresses["kafka"].split(",")[index] if is_broker else None,
        "HTTP": addresses["gateways"][index] if kind == "gateway" else None,
        "metrics": addresses["metrics"].get(name),
    }
