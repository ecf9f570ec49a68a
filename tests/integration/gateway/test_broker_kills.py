"""Eight HTTP clients write through one gateway while brokers are killed: no acknowledged record is
lost, no invalid one is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster

CLIENTS = 8
PARTITIONS = 6
BATCH = 20
JSON = {"content-type": "application/vnd.kafka.json.v2+json"}
RETRIABLE = {50003, 42901}  # the error codes that say "send it again"
DEADLINE_S = 60.0


@dataclass
class Outcome:
    """The responses of all clients together."""

    stopping: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    acknowledged: dict[tuple[int, int], str] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    record_errors: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def note(self, values: list[str], status: int, body: dict[str, Any]) -> None:
        """Record one response to a produce request with these values."""
        with self.lock:
            self.statuses[status] += 1
            if status != 200:
                if body.get("error_code") not in RETRIABLE:
                    self.wrong.append(f"{status} {body}")
                return
            if len(body["offsets"]) != len(values):
                self.wrong.append(f"{len(values)} records, {len(body['offsets'])} outcomes")
            for value, one in zip(values, body["offsets"], strict=False):
                if one["error_code"] is None:
                    place = (one["partition"], one["offset"])
                    if place in self.acknowledged:
                        self.wrong.append(f"{place} twice: {self.acknowledged[place]}, {value}")
                    self.acknowledged[place] = value
                else:
                    self.record_errors[one["error_code"]] += 1
                    if one["error_code"] not in RETRIABLE:
                        self.wrong.append(f"record: {one}")


def produce(url: str, topic: str, number: int, outcome: Outcome) -> None:
    """Run one client, which sends the next batch as soon as the last one has a response."""
    sent = 0
    with httpx.Client(base_url=url, timeout=60) as http:
        while not outcome.stopping.is_set():
            values = [f"{number}-{sent + i}" for i in range(BATCH)]
            sent += BATCH
            body = {"records": [{"key": value, "value": value} for value in values]}
            told = http.post(f"/topics/{topic}", json=body, headers=JSON)
            outcome.note(values, told.status_code, told.json())


def send_what_is_bad(url: str, topic: str, outcome: Outcome) -> None:
    """Send valid records together with an invalid one, wrong types, and bodies that are too large:
    each request is refused as a whole.
    """
    good = {"value": 1}
    cases = [
        (json.dumps({"records": [good, {"value": 2, "partition": -1}]}).encode(), JSON, 422),
        (json.dumps({"records": [good, {"valu": 2}]}).encode(), JSON, 422),
        (b'{"records": [{"value": 1}, {"value": ', JSON, 400),
        (json.dumps({"records": [good]}).encode(), {"content-type": "text/plain"}, 415),
        (json.dumps({"records": [good]}).encode(), {**JSON, "accept": "text/html"}, 406),
    ]
    where = httpx.URL(url)
    with httpx.Client(base_url=url, timeout=60) as gateway:
        while not outcome.stopping.is_set():
            for body, headers, status in cases:
                told = gateway.post(f"/topics/{topic}", content=body, headers=headers)
                if told.status_code != status:
                    outcome.wrong.append(f"{body!r}: {told.status_code} {told.text}, not {status}")
            connection = http.client.HTTPConnection(where.host, where.port, timeout=30)
            with contextlib.closing(connection):
                connection.putrequest("POST", f"/topics/{topic}")
                connection.putheader("content-type", JSON["content-type"])
                connection.putheader("content-length", str(1 << 40))
                connection.endheaders(b'{"records": [{"value": 1}')
                if (told_status := connection.getresponse().status) != 413:
                    outcome.wrong.append(f"too large: {told_status}, not 413")


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    settings = ("min.insync.replicas=2",)
    plan = ClusterPlan(brokers=3, controllers=1, gateways=1, settings=settings)
    with EmbeddedCluster(plan) as running:
        running.start()
        running.wait_ready()
        yield running


async def read_all(bootstrap: str, topic: str) -> dict[tuple[int, int], str]:
    """Return every record of the topic by its partition and offset."""
    found: dict[tuple[int, int], str] = {}
    async with (
        Client(bootstrap) as client,
        client.consumer(topic, auto_offset_reset="earliest") as consumer,
    ):
        ends = await consumer.end_offsets(consumer.assignment())
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < sum(ends.values()):
                for record in await consumer.getmany(1_000):
                    assert record.value is not None
                    found[(record.partition, record.offset)] = json.loads(record.value)
    return found


def wait_for_more(outcome: Outcome, count: int) -> None:
    """Wait until this many more records are acknowledged."""
    target = len(outcome.acknowledged) + count
    deadline_s = time.monotonic() + DEADLINE_S
    while len(outcome.acknowledged) < target:
        assert not outcome.wrong, outcome.wrong[:5]
        assert time.monotonic() < deadline_s, f"{len(outcome.acknowledged)} of {target}"
        outcome.stopping.wait(0.02)


def check_kills(cluster: EmbeddedCluster, kills: int, between: int) -> None:
    url: str = cluster.describe()["gateway"]
    with httpx.Client(base_url=url, timeout=60) as http:
        for name in ("kills", "untouched"):
            body = {"topic_name": name, "partitions_count": PARTITIONS, "replication_factor": 3}
            made = http.post(f"/v3/clusters/{cluster.cluster_id}/topics", json=body)
            assert made.status_code == 201, made.text
    outcome = Outcome()
    threads = [
        threading.Thread(target=produce, args=(url, "kills", number, outcome), daemon=True)
        for number in range(CLIENTS)
    ]
    threads.append(
        threading.Thread(target=send_what_is_bad, args=(url, "untouched", outcome), daemon=True)
    )
    for thread in threads:
        thread.start()
    try:
        for kill in range(kills):
            wait_for_more(outcome, between)
            broker = cluster.brokers[kill % 3 + 1]
            broker.kill()
            wait_for_more(outcome, between)  # without it
            broker.start()
            broker.wait_ready(DEADLINE_S)
        wait_for_more(outcome, between)
    finally:
        outcome.stopping.set()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads), "a client hangs"
    assert not outcome.wrong, outcome.wrong[:5]
    found = asyncio.run(read_all(cluster.bootstrap, "kills"))
    lost = {
        place: value for place, value in outcome.acknowledged.items() if found.get(place) != value
    }
    assert not lost, f"{len(lost)} of {len(outcome.acknowledged)} lost: {list(lost.items())[:5]}"
    twice = [value for value, count in Counter(found.values()).items() if count > 1]
    assert not twice, f"no client sent anything twice, and yet: {twice[:5]}"
    assert asyncio.run(read_all(cluster.bootstrap, "untouched")) == {}
    print(
        f"{kills} kills: {len(outcome.acknowledged)} acknowledged, statuses {dict(outcome.statuses)},"
        f" record errors {dict(outcome.record_errors)}"
    )


@pytest.mark.timeout(240)
def test_no_acknowledged_record_is_lost_when_a_broker_is_killed(cluster: EmbeddedCluster) -> None:
    check_kills(cluster, kills=1, between=2_000)


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_no_acknowledged_record_is_lost_over_many_kills(cluster: EmbeddedCluster) -> None:
    check_kills(cluster, kills=20, between=3_000)
