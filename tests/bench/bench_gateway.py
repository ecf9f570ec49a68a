"""Measures the gateway over HTTP: record rate, latency, and a thousand consumer instances.

    python -m tests.bench.bench_gateway [--parts produce,single,instances] [--seconds 10]

One gateway process, one broker, one controller and a process that makes the load share the cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.bench.processes import cpu_s, rss_mib

PARTITIONS = 4
RECORDS_PER_S_BAR = 20_000
SINGLE_MS_P99_BAR = 25.0
SINGLE_RATE = 100
INSTANCES = 1_000
MEMBERS_A_GROUP = 10
V2 = {"content-type": "application/vnd.kafka.v2+json"}
BINARY = "application/vnd.kafka.binary.v2+json"


def tell(what: str, figure: float, bar: float, *, is_met: bool, **more: object) -> None:
    line = {"bench": "gateway", "what": what, "figure": figure, "bar": bar, "met": is_met, **more}
    print(json.dumps(line), flush=True)


def load(url: str, topic: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.http_load", "--url", url]
    command += ["--path", f"/topics/{topic}", *arguments]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(finished.stdout)
    return figures


def make_topic(cluster: EmbeddedCluster, url: str, name: str, partitions: int) -> None:
    body = {"topic_name": name, "partitions_count": partitions, "replication_factor": 1}
    made = httpx.post(f"{url}/v3/clusters/{cluster.cluster_id}/topics", json=body, timeout=60)
    assert made.status_code == 201, made.text


def bench_produce(cluster: EmbeddedCluster, url: str, seconds: float) -> None:
    """Measure requests of 100 records of 100 bytes over 8 connections."""
    make_topic(cluster, url, "bench-produce", PARTITIONS)
    pid = cluster.gateways[1].pid
    assert pid is not None
    before_s = cpu_s([pid])
    figures = load(url, "bench-produce", "--seconds", str(seconds), "--connections", "8")
    share = (cpu_s([pid]) - before_s) / (seconds + min(2.0, seconds / 4))
    rate = figures.pop("records_per_s")
    tell(
        "produce, batches of 100 x 100 B, records/s",
        rate,
        RECORDS_PER_S_BAR,
        is_met=rate >= RECORDS_PER_S_BAR,
        gateway_cpu_share=round(share, 2),
        **figures,
    )


def bench_single(cluster: EmbeddedCluster, url: str, seconds: float) -> None:
    """Measure requests of one record at a fixed rate with acks=all."""
    make_topic(cluster, url, "bench-single", PARTITIONS)
    arguments = ["--rate", str(SINGLE_RATE), "--records", "1", "--connections", "16"]
    figures = load(url, "bench-single", "--seconds", str(seconds), *arguments)
    p99 = figures.pop("ms_p99")
    tell(
        f"single-record produce at {SINGLE_RATE} requests/s, p99 ms",
        p99,
        SINGLE_MS_P99_BAR,
        is_met=p99 < SINGLE_MS_P99_BAR,
        **figures,
    )


def bench_instances(cluster: EmbeddedCluster, url: str) -> None:
    """Create a thousand consumer instances in a hundred groups, and read with each; every group
    must read every record.
    """
    make_topic(cluster, url, "bench-instances", MEMBERS_A_GROUP)
    pid = cluster.gateways[1].pid
    assert pid is not None
    groups = INSTANCES // MEMBERS_A_GROUP
    before_mib, began = rss_mib([pid]), time.perf_counter()
    limits = httpx.Limits(max_connections=32, max_keepalive_connections=32)
    with httpx.Client(base_url=url, timeout=120, limits=limits) as http:

        def make(number: int) -> str:
            config = {"name": f"i{number}", "auto.offset.reset": "earliest"}
            group = f"bench-{number % groups}"
            made = http.post(f"/consumers/{group}", json=config, headers=V2)
            assert made.status_code == 200, made.text
            base = f"/consumers/{group}/instances/i{number}"
            topics = {"topics": ["bench-instances"]}
            response = http.post(f"{base}/subscription", json=topics, headers=V2)
            assert response.status_code == 204, response.text
            return base

        def read(base: str) -> tuple[str, int]:
            response = http.get(f"{base}/records?timeout=1000", headers={"accept": BINARY})
            assert response.status_code == 200, response.text
            return base.split("/")[2], len(response.json())

        with ThreadPoolExecutor(32) as threads:
            bases = list(threads.map(make, range(INSTANCES)))
            made_s = time.perf_counter() - began
            produced = {"records": [{"value": "aGk=", "partition": p} for p in range(10)]}
            response = http.post(
                "/topics/bench-instances", json=produced, headers={"content-type": BINARY}
            )
            assert response.status_code == 200, response.text
            counts = {f"bench-{group}": 0 for group in range(groups)}
            rounds, began = 0, time.perf_counter()
            while min(counts.values()) < MEMBERS_A_GROUP and rounds < 30:
                rounds += 1
                for group, count in threads.map(read, bases):
                    counts[group] += count
            served_s = time.perf_counter() - began
        used_s, began = cpu_s([pid]), time.perf_counter()
        time.sleep(5)  # measure what idle instances cost
        idle = (cpu_s([pid]) - used_s) / (time.perf_counter() - began)
    complete = sum(count == MEMBERS_A_GROUP for count in counts.values())
    tell(
        "open consumer instances, every record read by every group",
        len(bases),
        INSTANCES,
        is_met=len(bases) >= INSTANCES and complete == groups,
        groups=groups,
        groups_complete=complete,
        rounds=rounds,
        open_s=round(made_s, 1),
        served_s=round(served_s, 1),
        gateway_mib=round(rss_mib([pid])),
        kib_an_instance=round((rss_mib([pid]) - before_mib) * 1024 / INSTANCES),
        idle_cpu_share=round(idle, 2),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--parts", default="produce,single,instances")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    parts = options.parts.split(",")
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, gateways=1)) as cluster:
        cluster.start()
        cluster.wait_ready()
        url: str = cluster.describe()["gateway"]
        if "produce" in parts:
            bench_produce(cluster, url, options.seconds)
        if "single" in parts:
            bench_single(cluster, url, options.seconds)
        if "instances" in parts:
            bench_instances(cluster, url)


if __name__ == "__main__":
    main()
