"""`python -m odradek_demo`, which `odradek demo` starts: runs the demo with progress bars, and prints its report."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.output import EXIT_ERROR, console, one_line_errors
from odradek.cli.processes import explained
from odradek.embedded import ClusterPlan, EmbeddedCluster
from odradek_demo.flights import read_flights
from odradek_demo.report import Bars, print_report
from odradek_demo.run import CLUSTER_SETTINGS, run_demo


def demo(
    rate: Annotated[
        int, typer.Option(min=1, help="Send at most this many records per second.")
    ] = 15_000,
    records: Annotated[
        int | None,
        typer.Option(
            min=1000,
            help="Send only the first RECORDS flights. [default: all 336,776]",
            show_default=False,
        ),
    ] = None,
    keep_data: Annotated[
        bool, typer.Option(help="Keep the data directory and the logs of all processes.")
    ] = False,
) -> None:
    """Send real flights through a cluster while two of its processes are killed.

    The demo starts three controllers, three brokers and a gateway on this machine, and sends 336,776 flights. Meanwhile
    it kills the busiest partition leader and the active controller. At the end, it compares every byte that was read
    with what was sent. With Spark and a JDK, it also runs a streaming query, and kills the driver of that query.
    """
    data_dir = Path(tempfile.mkdtemp(prefix="odradek-demo-")) if keep_data else None
    with Bars(console(stderr=True)) as bars:
        bars.say("starting 3 controllers, 3 brokers and a gateway")
        cluster = EmbeddedCluster(
            ClusterPlan(
                brokers=3,
                controllers=3,
                gateways=1,
                data_dir=data_dir,
                settings=CLUSTER_SETTINGS,
            )
        )
        with cluster:
            cluster.start()
            bars.say("reading the flights while the processes start")
            bars.update("start processes", 0, 1)
            flights = read_flights()[:records]
            with explained(cluster, tell=bars.say):
                cluster.wait_ready()
            bars.update("start processes", 1, 1)
            bars.say(f"the cluster is ready at {cluster.bootstrap}")
            outcome = asyncio.run(run_demo(cluster, flights, rate=rate, progress=bars.update))
            bars.update("stop processes", 0, 1)
        bars.update("stop processes", 1, 1)
    print_report(console(), outcome, flights)
    if keep_data:
        print(f"data and logs: {data_dir}", file=sys.stderr)
    faults = outcome.faults()
    for fault in faults:
        print(f"odradek demo: {fault}", file=sys.stderr)
    raise typer.Exit(EXIT_ERROR if faults else 0)


def main() -> None:
    """Run the command line of the demo."""
    with one_line_errors():
        app = typer.Typer(
            rich_markup_mode=None,
            add_completion=False,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        app.command(epilog="Example: odradek demo --records 50000")(demo)
        app(prog_name="odradek demo")


if __name__ == "__main__":
    main()
