"""Compares the CPU time of `odradek produce` and `odradek consume` with that of kcat, alternately, for lines of one
size.

Run it with `python -m tests.bench.comparisons.beside_kcat --records 1000000 --pairs 5`. It prints one line of JSON for
each direction: CPU seconds of both programs, and the ratios Odradek to kcat.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from odradek.embedded import ClusterPlan, EmbeddedCluster

ODRADEK: Final = [sys.executable, "-m", "odradek.cli.main"]
LINE_BYTES: Final = 100


def cpu_s(command: list[str], output: Path) -> float:
    """Run a command with its output in a file, and return its CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with output.open("wb") as file:
        subprocess.run(command, stdout=file, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def digest(path: Path) -> str:
    """Return a hash of the lines of a file, whatever their order."""
    return hashlib.sha256(b"".join(sorted(path.read_bytes().splitlines()))).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=5)
    chosen = parser.parse_args()
    plan = ClusterPlan(brokers=3, controllers=1)
    with tempfile.TemporaryDirectory() as folder, EmbeddedCluster(plan) as cluster:
        cluster.start()
        cluster.wait_ready()
        os.environ["ODRADEK_BOOTSTRAP"] = cluster.bootstrap
        kafka = cluster.kafka_bootstrap
        lines, theirs, ours = (Path(folder) / name for name in ("lines", "theirs", "ours"))
        with lines.open("w") as file:
            file.writelines(f"{number:0{LINE_BYTES - 1}d}\n" for number in range(chosen.records))
        expected = digest(lines)
        spent: dict[str, list[tuple[float, float]]] = {"produce": [], "consume": []}
        for pair in range(chosen.pairs):
            topics = [f"kcat-{pair}", f"odradek-{pair}"]
            for topic in topics:
                create = ["topic", "create", topic, "--partitions", "3", "--replicas", "3"]
                subprocess.run([*ODRADEK, *create], stdout=subprocess.DEVNULL, check=True)
            kcat = ["kcat", "-b", kafka, "-t", topics[0]]
            spent["produce"].append(
                (
                    cpu_s([*kcat, "-P", "-l", str(lines)], theirs),
                    cpu_s([*ODRADEK, "produce", topics[1], str(lines)], ours),
                )
            )
            read = ["consume", topics[1], "--from-beginning", "--exit-at-end"]
            spent["consume"].append(
                (
                    cpu_s([*kcat, "-C", "-o", "beginning", "-e", "-q"], theirs),
                    cpu_s([*ODRADEK, *read], ours),
                )
            )
            assert digest(theirs) == digest(ours) == expected
            for topic in topics:
                delete = ["topic", "delete", topic, "--yes"]
                subprocess.run([*ODRADEK, *delete], stdout=subprocess.DEVNULL, check=True)
        for direction, pairs in spent.items():
            ratios = sorted(round(our / their, 2) for their, our in pairs)
            report = {
                "direction": direction,
                "kcat cpu s": [round(their, 2) for their, _ in pairs],
                "odradek cpu s": [round(our, 2) for _, our in pairs],
                "ratio": statistics.median(ratios),
                "ratios": ratios,
            }
            print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
