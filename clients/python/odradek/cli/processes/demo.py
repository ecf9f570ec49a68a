"""`odradek demo`: the report of odradek.demo, with progress bars while it works."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def demo(
    rate: Annotated[int, typer.Option(min=1, help="Records a second to produce at most.")] = 15_000,
    records: Annotated[
        int | None, typer.Option(min=1000, help="Only the first so many flights; none: all.")
    ] = None,
    keep_data: Annotated[bool, typer.Option(help="Leave the data directory there.")] = False,
) -> None:
    """Real flights through a cluster that loses two processes.

    Sends 336,776, kills the busiest leader and the active controller, and compares every byte.
    """
    import asyncio
    import tempfile
    from pathlib import Path

    from odradek.cli.output import EXIT_ERROR, console
    from odradek.demo.flights import read_flights
    from odradek.demo.report import Bars, print_report
    from odradek.demo.run import CLUSTER_SETTINGS, run_demo
    from odradek.embedded import ClusterPlan, EmbeddedCluster

    data_dir = Path(tempfile.mkdtemp(prefix="odradek-demo-")) if keep_data else None
    with Bars(console(stderr=True)) as bars:
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
            bars.say("reading the flights while the cluster starts")
            flights = read_flights()[:records]
            cluster.wait_ready()
            bars.say(f"the cluster serves: {cluster.bootstrap}")
            outcome = asyncio.run(run_demo(cluster, flights, rate=rate, progress=bars.update))
    print_report(console(), outcome, flights)
    if keep_data:
        print(f"data and logs: {data_dir}", file=sys.stderr)
    faults = outcome.faults()
    for fault in faults:
        print(f"odradek demo: {fault}", file=sys.stderr)
    raise typer.Exit(EXIT_ERROR if faults else 0)
