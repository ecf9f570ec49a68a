"""Commands that run processes: `odradek dev` runs a whole cluster of child processes, and `odradek broker`, `odradek
gateway` and similar commands run one process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from odradek.cli.connection import PATIENCE_S
from odradek.cli.output import EXIT_ERROR, EXIT_USAGE, fail
from odradek.extras import what_is_missing

if TYPE_CHECKING:
    from odradek.embedded import ChildProcess, EmbeddedCluster

SEARCH_TURNS: Final = 5
"""The loop of `odradek dev` looks for processes that the user has started again once in this number of turns, because
the search reads the command lines of all processes of the machine.
"""


def run_module(module: str, extra: str, arguments: list[str]) -> None:
    """Replace this process by `python -m module`. If the module is not installed, the command ends with an error that
    names the extra of the package to install.
    """
    if missing := what_is_missing(module, extra):
        fail(missing, status=EXIT_ERROR)
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def gateway(context: typer.Context) -> None:
    """Run a REST gateway in the foreground."""
    run_module("odradek_gateway", "server", context.args)


def demo(context: typer.Context) -> None:
    """Kill processes during writes, and show that no record is lost."""
    run_module("odradek_demo", "demo", context.args)


def pipeline(context: typer.Context) -> None:
    """Run a Spark pipeline by name."""
    run_module("odradek_pipelines", "spark", context.args)


def broker(
    context: typer.Context,
    processes: Annotated[int, typer.Option(min=1, max=64, metavar="N")] = 1,
    status_port: Annotated[int | None, typer.Option(min=0, max=65_535, metavar="PORT")] = None,
) -> None:
    """Run a broker in the foreground, or several with --processes."""
    # The two options have no help texts, because `python -m odradek_broker --help` prints the help of this command, and
    # describes the two options.
    if processes == 1 and status_port is None:
        run_module("odradek_broker", "server", context.args)
    if missing := what_is_missing("odradek_broker", "server"):
        fail(missing, status=EXIT_ERROR)
    from odradek.embedded import ChildProcessFailed
    from odradek.supervisor import HostSupervisor, SupervisedBroker, plan_host, serve_probes

    arguments = [word for word in context.args if word != "--exit-with-parent"]
    try:
        plan = plan_host(processes, arguments)
    except ChildProcessFailed as refused:
        fail(str(refused).removeprefix("odradek broker: "), status=EXIT_USAGE)
    supervisor = HostSupervisor(
        [SupervisedBroker(process, arguments) for process in plan],
        log_format=plan[0]["log_format"],
    )
    if status_port is not None:
        try:
            serve_probes(supervisor, plan[0]["metrics_host"], status_port)
        except OSError as error:
            fail(
                f"cannot listen on --status-port {status_port}: {error.strerror}", status=EXIT_USAGE
            )

    def stop(*_: object) -> None:
        if supervisor.stop.is_set():
            supervisor.kill_all()
        supervisor.stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGHUP, lambda *_: supervisor.roll.set())
    if "--exit-with-parent" in context.args:
        threading.Thread(target=_stop_at_end_of_input, args=(supervisor.stop,), daemon=True).start()
    raise typer.Exit(supervisor.run())


def dev(
    brokers: Annotated[
        int, typer.Option(min=1, max=32, metavar="N", help="Number of brokers to run.")
    ] = 3,
    controllers: Annotated[
        int, typer.Option(min=1, max=7, metavar="N", help="Number of controllers to run.")
    ] = 3,
    gateways: Annotated[
        int, typer.Option(min=0, max=8, metavar="N", help="Number of REST gateways to run.")
    ] = 1,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Store the data of all processes in this directory, and keep it."
            " [default: a temporary directory, deleted at the end]"
        ),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Use consecutive ports that begin with this one. 0: any free ports."
            " [default: 9090 (gRPC), 9092 (Kafka), 8082 (HTTP), ... if they are free]",
            min=0,
            max=65_000,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Override a setting of the controllers, brokers or gateways, such as log.level=DEBUG."
            " Repeatable.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the addresses as one line of JSON once the cluster accepts writes.",
        ),
    ] = False,
    exit_with_parent: Annotated[
        bool,
        typer.Option("--exit-with-parent", help="Stop the cluster at the end of standard input."),
    ] = False,
) -> None:
    """Run a whole cluster in the foreground.

    Ctrl-C or SIGTERM stops the cluster with all its processes. If one process is killed, the others keep running, and
    `odradek dev` prints the command that starts it again. `odradek dev` also stops processes that you have started with
    such a command.
    """
    from odradek.embedded import ClusterPlan, EmbeddedCluster

    plan = ClusterPlan(
        brokers=brokers,
        controllers=controllers,
        gateways=gateways,
        data_dir=data_dir,
        base_port=base_port or 0,
        prefers_usual_ports=base_port is None,
        settings=_with_defaults(
            settings or [], brokers, is_for_people=not as_json and sys.stdout.isatty()
        ),
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if exit_with_parent:
        threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    with EmbeddedCluster(plan) as cluster:
        cluster.on_user_process_stopped = _report_user_process
        if not as_json:
            _announce(cluster)
        if locked := cluster.locked_directories():
            print(
                f"waiting for the processes that use {', '.join(map(str, locked))} to end",
                file=sys.stderr,
                flush=True,
            )
            cluster.wait_unlocked(stop)
        if as_json:
            cluster.start()
            cluster.wait_ready(stop=stop)
            print(json.dumps(cluster.describe()), flush=True)
        else:
            cluster.start_brokers()
            with explained(cluster):
                cluster.wait_brokers_ready(stop=stop)
            # The gateways start after the brokers. If they started together, the gateways would use CPU time that the
            # brokers need to become ready.
            cluster.start_gateways()
            _print_addresses(cluster)
        if _watch(cluster, stop, announces_gateways=not as_json):
            return
    raise typer.Exit(1)


@contextlib.contextmanager
def explained(
    cluster: EmbeddedCluster, *, tell: Callable[[str], object] | None = None
) -> Iterator[None]:
    """Until the block ends, print a line after each PATIENCE_S seconds that names the processes that are still
    starting. If `tell` is given, the line is passed to `tell` instead.
    """
    is_done = threading.Event()

    def explain() -> None:
        while not is_done.wait(PATIENCE_S):
            if names := cluster.starting():
                line = f"waiting for {', '.join(names)}"
                print(line, flush=True) if tell is None else tell(line)

    explaining = threading.Thread(target=explain, daemon=True)
    explaining.start()
    try:
        yield
    finally:
        is_done.set()
        explaining.join()


def _watch(cluster: EmbeddedCluster, stop: threading.Event, *, announces_gateways: bool) -> bool:
    """Wait until `stop` is set and return True, or return False when no process is running any more.

    The end of a process is reported, and the other processes keep running. A process that the user has started again
    counts as running; its start and its end are reported, too. With `announces_gateways`, each gateway that becomes
    ready is reported.
    """
    running = cluster.children()
    # The pid of each process that the user has started, by name.
    started_by_user: dict[str, int] = {}
    starting_gateways = dict(cluster.gateways) if announces_gateways else {}
    turns = 0
    while not stop.wait(0.2):
        turns += 1
        for index in [index for index, gateway in starting_gateways.items() if gateway.is_ready]:
            url = cluster.describe()["gateways"][index - 1]
            print(f"{starting_gateways.pop(index).name} serves {url}", flush=True)
        for child in [child for child in running if not child.is_running]:
            running.remove(child)
            print(
                f"odradek: {child.name} {child.describe_exit()}; the others keep running."
                f" Its log: {child.log_path}. To start it again: {shlex.join(child.command)}",
                file=sys.stderr,
                flush=True,
            )
        if turns % SEARCH_TURNS == 0:
            for child in cluster.children():
                _report_restarts(child, started_by_user)
        if not running and not any(child.user_pids() for child in cluster.children()):
            print("odradek: no process of the cluster is running", file=sys.stderr)
            return False
    return True


def _report_restarts(child: ChildProcess, started_by_user: dict[str, int]) -> None:
    """Print a message if the user has started a process again, or such a process has ended, since the last call.
    `started_by_user` has the pids of these processes by name, and is updated.
    """
    pids = child.user_pids()
    known = started_by_user.get(child.name)
    if known in pids or (known is None and not pids):
        return
    if known is not None:
        del started_by_user[child.name]
        print(
            f"odradek: {child.name} (pid {known}), which was started again by hand, has ended; the others keep running."
            f" To start it again: {shlex.join(child.command)}",
            file=sys.stderr,
            flush=True,
        )
    if pids:
        started_by_user[child.name] = pids[0]
        print(
            f"odradek: {child.name} runs again (pid {pids[0]})",
            file=sys.stderr,
            flush=True,
        )


def _report_user_process(name: str, pid: int, has_ended: bool) -> None:
    """Print whether a process that the user had started again has ended with the cluster."""
    outcome = "was stopped" if has_ended else f"still runs: stop it with `kill -9 {pid}`"
    print(
        f"odradek: {name} (pid {pid}), which was started again by hand, {outcome}",
        file=sys.stderr,
        flush=True,
    )


def _stop_at_end_of_input(stop: threading.Event) -> None:
    with contextlib.suppress(OSError):
        # `sys.stdin` is not used: its lock, which this thread would hold, blocks the exit of the interpreter.
        while os.read(0, 4096):
            pass
    stop.set()


def _with_defaults(settings: list[str], brokers: int, *, is_for_people: bool) -> tuple[str, ...]:
    """Add settings for a development cluster, unless the user gave them.

    With the added replication factor, any one broker can be killed without losing records. If the cluster is started on
    a terminal, its processes log text.
    """
    defaults = {"default.replication.factor": str(min(3, brokers))} if brokers > 1 else {}
    if is_for_people:
        defaults["log.format"] = "text"
    given = {setting.partition("=")[0] for setting in settings}
    added = (f"{name}={value}" for name, value in defaults.items() if name not in given)
    return (*settings, *added)


def _announce(cluster: EmbeddedCluster) -> None:
    """Print which processes are started, and where their data is stored."""
    plan = cluster.plan
    kept = "deleted at the end; --data-dir DIR keeps it" if cluster.is_temporary else "kept"
    counts = {
        "controller": plan.controllers,
        "broker": plan.brokers,
        "gateway": plan.gateways,
    }
    named = [f"{count} {kind}{'s' if count != 1 else ''}" for kind, count in counts.items()]
    print(
        f"Starting {', '.join(named[:2])} and {named[2]}; data in {cluster.data_dir} ({kept})",
        flush=True,
    )
    if plan.prefers_usual_ports and not cluster.has_usual_ports:
        print(
            "The default ports (9090, 9092, 8082, ...) are in use; the cluster uses free ports instead",
            flush=True,
        )


def _print_addresses(cluster: EmbeddedCluster) -> None:
    from odradek.cli.output import OutputFormat, console, print_rows

    addresses = cluster.describe()
    out = console()
    out.print("[bold]The cluster accepts writes.[/bold] Ctrl-C stops it.\n")
    rows = [
        {"process": name, "pid": pid, **_listeners_of(name, cluster)}
        for name, pid in addresses["pids"].items()
    ]
    print_rows(rows, OutputFormat.TABLE, empty="")
    out.print("\nPorts that only these processes use, on 127.0.0.1:")
    for listener, key in (
        ("replication (gRPC)", "replication"),
        ("controllers (gRPC)", "controllers"),
        ("controllers (Raft)", "raft"),
    ):
        ports = [address.rpartition(":")[2] for address in addresses[key].split(",")]
        out.print(f"  {listener}: {', '.join(ports)}")
    out.print("\nIn another terminal:")
    if not cluster.has_usual_ports:
        out.print(f"  export ODRADEK_BOOTSTRAP={addresses['grpc']}")
    replicas = min(3, cluster.plan.brokers)
    out.print(f"  odradek topic create greetings --partitions 3 --replicas {replicas}")
    out.print("  echo hello | odradek produce greetings")
    out.print("  odradek consume greetings --from-beginning --exit-at-end")
    out.print(f"Kafka clients: bootstrap.servers={addresses['kafka']}")
    if cluster.gateways:
        out.print("The REST gateway is still starting; a line follows when it serves requests.")


def _listeners_of(name: str, cluster: EmbeddedCluster) -> dict[str, str | None]:
    """Return the addresses of a process as table columns, one for each protocol."""
    addresses = cluster.describe()
    kind, _, number = name.rpartition("-")
    index = int(number) - 1
    is_broker = kind == "broker"
    return {
        "gRPC (SDK, CLI)": addresses["grpc"].split(",")[index] if is_broker else None,
        "Kafka": addresses["kafka"].split(",")[index] if is_broker else None,
        "HTTP (metrics, REST)": addresses["gateways"][index].removeprefix("http://")
        if kind == "gateway"
        else addresses["metrics"].get(name),
    }
