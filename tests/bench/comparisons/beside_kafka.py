"""Compares Odradek with Apache Kafka 4.4.0, with the same client (confluent-kafka): `make
bench-kafka PAIRS=5`.

Both clusters run at the same time on this machine, with default settings and one partition in each
topic, and are measured one after the other, each in a separate client process. The client for
single requests (`--only requests`) is written in C. First each side has one node, with acks=1 and
one replica; then three nodes, with acks=all, three replicas and min.insync.replicas=2 (Kafka:
combined nodes; Odradek: brokers and one controller). JSON lines go to standard output, progress to
standard error, and a table of the targets comes at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.bench.comparisons.kafka_cluster import fetch_jars
from tests.bench.comparisons.kafka_comparison import Comparison, start_row
from tests.bench.comparisons.kafka_requests import compiled
from tests.bench.comparisons.kafka_rows import Row, as_json, table

BYTES: Final = {
    1: {100: 300_000_000, 1024: 1_000_000_000},
    3: {100: 200_000_000, 1024: 400_000_000},
}
"""The bytes that a run produces and consumes, by nodes and record size, at scale 1."""
STARTS: Final = 3
_PARTS: Final = [
    *("start", "throughput", "paced", "memory", "requests", "transactions", "processes"),
]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.bench.comparisons.beside_kafka", description=__doc__
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the bytes of a run")
    parser.add_argument("--paced-seconds", type=float, default=10.0)
    parser.add_argument("--nodes", type=int, nargs="+", choices=[1, 3], default=[1, 3])
    parser.add_argument("--sizes", type=int, nargs="+", choices=[100, 1024], default=[100, 1024])
    parser.add_argument(
        "--only",
        nargs="+",
        choices=_PARTS,
        default=_PARTS,
    )
    parser.add_argument("--transactions", type=int, default=500, help="transactions in a run")
    parser.add_argument("--request-seconds", type=float, default=5.0)
    parser.add_argument("--root", type=Path, default=Path("artifacts/bench-kafka"))
    options = parser.parse_args()
    options.root.mkdir(parents=True, exist_ok=True)
    jars = fetch_jars(options.root / "jars")
    print(json.dumps({"machine": platform.platform(), "cores": os.cpu_count()}), flush=True)
    rows: list[Row] = []
    with Progress(
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as progress:
        task = progress.add_task("bench-kafka", total=_steps(options))

        def tell(line: dict[str, Any]) -> None:
            progress.update(task, description=f"{line['measure']} {line.get('case', '')}")
            progress.advance(task)
            print(json.dumps(line), flush=True)

        for nodes in options.nodes:
            rows += _compare(options, jars, nodes, tell)
    for row in rows:
        print(json.dumps(as_json(row)), flush=True)
    print(table(rows), flush=True)
    return 0 if all(row.is_met for row in rows) else 1


def _compare(options: argparse.Namespace, jars: Path, nodes: int, tell: Any) -> list[Row]:
    rows: list[Row] = []
    waits_s = []
    starts = STARTS if nodes == 1 and "start" in options.only else 1
    for left in reversed(range(starts)):
        with (
            tempfile.TemporaryDirectory(prefix="data-", dir=options.root) as data,
            Comparison(
                jars.resolve(), Path(data).resolve(), nodes=nodes, pairs=options.pairs, tell=tell
            ) as both,
        ):
            waits_s.append(both.start())
            if left:
                continue
            if "start" in options.only and nodes == 1:
                rows.append(start_row(waits_s))
            if "paced" in options.only:
                rows += both.paced(options.paced_seconds)
            if "transactions" in options.only:
                rows += both.transactions(options.transactions)
            if "requests" in options.only:
                program = compiled(Path(data).resolve())
                rows += both.requests(options.request_seconds, program)
            if "processes" in options.only and nodes == 1:
                directory = Path(data).resolve()
                program = compiled(directory)
                rows += both.processes(options.request_seconds, program, directory / "two")
            if "throughput" in options.only:
                for size in options.sizes:
                    records = int(BYTES[nodes][size] * options.scale) // size
                    rows += both.throughput(size, records)
            if "memory" in options.only:
                rows.append(both.memory())
    return rows


def _steps(options: argparse.Namespace) -> int:
    """Return how many lines the benchmark will print."""
    steps = 0
    for nodes in options.nodes:
        steps += STARTS if nodes == 1 and "start" in options.only else 1
        steps += (options.pairs + 1) * ("paced" in options.only) + ("memory" in options.only)
        steps += (options.pairs + 1) * ("transactions" in options.only)
        steps += 2 * (options.pairs + 1) * len(options.sizes) * ("throughput" in options.only)
        steps += (9 if nodes == 1 else 1) * (options.pairs + 1) * ("requests" in options.only)
        steps += (options.pairs + 1) * ("processes" in options.only and nodes == 1)
    return steps


if __name__ == "__main__":
    sys.exit(main())
