"""Measures the metadata quorum: commits per second and their latency, and failover after kill -9.

`python -m tests.bench.bench_quorum [--kills N]` prints one JSON object in each line. Three voter
processes run on loopback, with fsync and mutual TLS; the clients run in the leader's process, as
the controller does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from tests.integration.quorum.voter_cluster import VoterCluster

LOADS = ((1, 3_000), (16, 40_000), (128, 120_000))


def report(**figures: object) -> None:
    """Print one line of JSON."""
    print(
        json.dumps({"bench": "quorum", **figures, "load_average": os.getloadavg()[0]}), flush=True
    )


def measure_commits(cluster: VoterCluster) -> None:
    """Measure once with each number of concurrent clients, after a warm-up."""
    leader = cluster.leader()
    for number, (tasks, proposals) in enumerate(((16, 5_000), *LOADS)):
        cluster.say(leader, do="load", tasks=tasks, proposals=proposals)
        event = cluster.wait_for(
            lambda leader=leader, number=number: cluster.events(leader, "load")[number:],
            "a measurement",
            bound_s=120.0,
        )[0]
        if number:
            event.pop("event")
            report(measure="commits", **event)


def measure_failover(cluster: VoterCluster, kills: int) -> None:
    """Kill the leader (kill -9), and measure the time to the first write that a new leader
    acknowledges.
    """
    for node_id in cluster.node_ids:
        cluster.say(node_id, do="trickle")
    gaps_ms = []
    for _ in range(kills):
        cluster.wait_for(lambda: len(cluster.acknowledged()) > 50, "acknowledgements")
        leader = cluster.leader()
        others = [node_id for node_id in cluster.node_ids if node_id != leader]
        time.sleep(0.5)
        killed_s = time.time()
        cluster.kill(leader)

        def first_ack(killed_s: float = killed_s, others: list[int] = others) -> float | None:
            times = [
                event["time_s"]
                for node_id in others
                for event in cluster.events(node_id, "ack")
                if event["time_s"] > killed_s
            ]
            return min(times, default=None)

        first_s = cluster.wait_for(first_ack, "the first acknowledgement after the kill")
        gaps_ms.append((first_s - killed_s) * 1e3)
        cluster.start(leader)
        cluster.say(leader, do="trickle")
        time.sleep(1.5)
    report(
        measure="failover",
        kills=kills,
        median_ms=round(statistics.median(gaps_ms)),
        max_ms=round(max(gaps_ms)),
        all_ms=[round(gap) for gap in gaps_ms],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--no-tls", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        with VoterCluster(Path(directory) / "commits", tls=not arguments.no_tls) as cluster:
            measure_commits(cluster)
        with VoterCluster(Path(directory) / "kills", tls=not arguments.no_tls) as cluster:
            measure_failover(cluster, arguments.kills)


if __name__ == "__main__":
    main()
