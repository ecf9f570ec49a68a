"""Consumer instances: every gateway serves each of them, also after one gateway was killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import httpx
import pytest

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster

V2 = {"content-type": "application/vnd.kafka.v2+json"}
JSON = {"content-type": "application/vnd.kafka.json.v2+json"}
ACCEPT_JSON = {"accept": "application/vnd.kafka.json.v2+json"}
DEADLINE_S = 60.0  # so high that a slow machine does not exceed it


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    plan = ClusterPlan(
        brokers=1,
        controllers=1,
        gateways=3,
        settings=(
            "group.consumer.session.timeout.ms=30000",
            "group.consumer.heartbeat.interval.ms=500",
        ),
    )
    with EmbeddedCluster(plan) as running:
        running.start()
        running.wait_ready()
        yield running


@pytest.fixture
def gateways(cluster: EmbeddedCluster) -> Iterator[list[httpx.Client]]:
    clients = [httpx.Client(base_url=url, timeout=60) for url in cluster.describe()["gateways"]]
    yield clients
    for client in clients:
        client.close()


def make_topic(gateway: httpx.Client, cluster: EmbeddedCluster, name: str, count: int) -> None:
    body = {"topic_name": name, "partitions_count": 2, "replication_factor": 1}
    made = gateway.post(f"/v3/clusters/{cluster.cluster_id}/topics", json=body)
    assert made.status_code == 201, made.text
    if count:
        produce(gateway, name, 0, count)


def produce(gateway: httpx.Client, topic: str, start: int, count: int) -> None:
    records = {"records": [{"value": {"n": n}} for n in range(start, start + count)]}
    told = gateway.post(f"/topics/{topic}", content=json.dumps(records), headers=JSON)
    assert told.status_code == 200, told.text


def make_instance(gateway: httpx.Client, group: str, name: str, topic: str) -> str:
    config = {
        "name": name,
        "format": "json",
        "auto.offset.reset": "earliest",
        "auto.commit.enable": "false",
    }
    told = gateway.post(f"/consumers/{group}", json=config, headers=V2)
    assert told.status_code == 200, told.text
    base = f"/consumers/{group}/instances/{told.json()['instance_id']}"
    assert (
        gateway.post(f"{base}/subscription", json={"topics": [topic]}, headers=V2).status_code
        == 204
    )
    return base


def read_until(gateways: Iterator[httpx.Client], base: str, count: int) -> list[int]:
    """Return the values of at least this many records, read from the gateways in turn."""
    values: list[int] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(values) < count:
        assert time.monotonic() < deadline_s, f"only {len(values)} of {count} records came"
        told = next(gateways).get(f"{base}/records?timeout=500", headers=ACCEPT_JSON)
        assert told.status_code == 200, told.text
        values += [record["value"]["n"] for record in told.json()]
    return values


def test_any_gateway_serves_an_instance(
    cluster: EmbeddedCluster, gateways: list[httpx.Client]
) -> None:
    make_topic(gateways[0], cluster, "alternate", 100)
    base = make_instance(gateways[0], "g-alternate", "one", "alternate")
    assert sorted(read_until(cycle(gateways), base, 100)) == list(range(100))
    produce(gateways[1], "alternate", 100, 50)
    assert sorted(read_until(cycle(gateways), base, 50)) == list(range(100, 150))
    assert gateways[1].post(f"{base}/offsets", headers=V2).status_code == 200
    wanted = {"partitions": [{"topic": "alternate", "partition": p} for p in (0, 1)]}
    told = gateways[0].request("GET", f"{base}/offsets", json=wanted, headers=V2)
    committed = told.json()["offsets"]
    assert sum(one["offset"] for one in committed) == 150
    (first, _) = committed
    body = {"offsets": [{"topic": "alternate", "partition": first["partition"], "offset": 9}]}
    assert gateways[1].post(f"{base}/offsets", json=body, headers=V2).status_code == 200
    told = gateways[0].request("GET", f"{base}/offsets", json=wanted, headers=V2)
    assert {**first, "offset": 10} in told.json()["offsets"], "9 was the last that was processed"
    assert gateways[1].delete(base).status_code == 204
    gone = gateways[0].get(f"{base}/records", headers=ACCEPT_JSON)
    assert (gone.status_code, gone.json()["error_code"]) == (404, 40403)


def test_errors_have_their_codes(cluster: EmbeddedCluster, gateways: list[httpx.Client]) -> None:
    make_topic(gateways[0], cluster, "codes", 1)
    base = make_instance(gateways[0], "g-codes", "one", "codes")

    def code(response: httpx.Response) -> tuple[int, int]:
        return response.status_code, response.json()["error_code"]

    again = gateways[1].post("/consumers/g-codes", json={"name": "one"}, headers=V2)
    assert code(again) == (409, 40902)
    bad = gateways[0].post("/consumers/g-codes", json={"format": "xml"}, headers=V2)
    assert code(bad) == (422, 42204)
    assigned = {"partitions": [{"topic": "codes", "partition": 0}]}
    mixed = gateways[0].post(f"{base}/assignments", json=assigned, headers=V2)
    assert code(mixed) == (409, 40903)
    accept = {"accept": "application/vnd.kafka.binary.v2+json"}
    assert code(gateways[0].get(f"{base}/records", headers=accept)) == (406, 40601)
    nobody = gateways[0].get("/consumers/g-codes/instances/nobody/records", headers=ACCEPT_JSON)
    assert code(nobody) == (404, 40403)


def test_seek_and_manual_assignment(cluster: EmbeddedCluster, gateways: list[httpx.Client]) -> None:
    make_topic(gateways[0], cluster, "seek", 20)
    config = {"name": "m", "format": "json", "auto.offset.reset": "earliest"}
    assert gateways[0].post("/consumers/g-seek", json=config, headers=V2).status_code == 200
    base = "/consumers/g-seek/instances/m"
    both = {"partitions": [{"topic": "seek", "partition": p} for p in (0, 1)]}
    assert gateways[0].post(f"{base}/assignments", json=both, headers=V2).status_code == 204
    assert sorted(read_until(cycle(gateways), base, 20)) == list(range(20))
    assert gateways[1].post(f"{base}/positions/beginning", json=both, headers=V2).status_code == 204
    assert sorted(read_until(cycle(gateways), base, 20)) == list(range(20))
    foreign = {"offsets": [{"topic": "other", "partition": 0, "offset": 0}]}
    assert gateways[0].post(f"{base}/positions", json=foreign, headers=V2).status_code == 409


def test_an_instance_goes_on_at_its_committed_offset_when_its_gateway_is_killed(
    cluster: EmbeddedCluster, gateways: list[httpx.Client]
) -> None:
    make_topic(gateways[1], cluster, "survives", 60)
    base = make_instance(gateways[0], "g-survives", "one", "survives")
    assert sorted(read_until(cycle(gateways[:1]), base, 60)) == list(range(60))
    assert gateways[0].post(f"{base}/offsets", headers=V2).status_code == 200
    produce(gateways[1], "survives", 60, 40)
    assert len(read_until(cycle(gateways[:1]), base, 40)) == 40  # handed out, never committed
    cluster.gateways[1].kill()
    try:
        again = read_until(cycle(gateways[1:]), base, 40)
        assert sorted(again) == list(range(60, 100)), (
            "what was not committed comes again, and no more"
        )
    finally:
        cluster.gateways[1].start()
        cluster.gateways[1].wait_ready(30)
    produce(gateways[1], "survives", 100, 50)
    rest = read_until(cycle(gateways), base, 50)
    assert sorted(rest) == list(range(100, 150)), (
        "the one that came back serves beside the new owner"
    )


def test_a_gateway_that_hangs_loses_its_instance_and_serves_on_when_it_resumes(
    cluster: EmbeddedCluster, gateways: list[httpx.Client]
) -> None:
    """The kernel still accepts connections for the stopped process. The timeout of the clients is shorter than the
    time that the other gateway needs to notice that it hangs.
    """
    make_topic(gateways[0], cluster, "hangs", 60)
    base = make_instance(gateways[0], "g-hangs", "one", "hangs")
    assert sorted(read_until(cycle(gateways[:1]), base, 60)) == list(range(60))
    assert gateways[0].post(f"{base}/offsets", headers=V2).status_code == 200
    produce(gateways[1], "hangs", 60, 40)
    values: list[int] = []
    deadline_s = time.monotonic() + 2 * DEADLINE_S
    with ThreadPoolExecutor(1) as threads:
        os.kill(cluster.gateways[1].pid, signal.SIGSTOP)
        try:
            patient = threads.submit(gateways[0].post, f"{base}/offsets", headers=V2)
            while len(values) < 40:
                assert time.monotonic() < deadline_s, f"only {len(values)} of 40 records came"
                with contextlib.suppress(httpx.ReadTimeout):
                    told = gateways[1].get(
                        f"{base}/records?timeout=500", headers=ACCEPT_JSON, timeout=8
                    )
                    assert told.status_code == 200, told.text
                    values += [record["value"]["n"] for record in told.json()]
            assert gateways[1].post(f"{base}/offsets", headers=V2).status_code == 200
        finally:
            os.kill(cluster.gateways[1].pid, signal.SIGCONT)
        assert patient.result().status_code in (200, 503), patient.result().text
    assert sorted(values) == list(range(60, 100))
    produce(gateways[1], "hangs", 100, 50)
    assert sorted(read_until(cycle(gateways), base, 50)) == list(range(100, 150))
    wanted = {"partitions": [{"topic": "hangs", "partition": p} for p in (0, 1)]}
    told = gateways[0].request("GET", f"{base}/offsets", json=wanted, headers=V2)
    assert sum(one["offset"] for one in told.json()["offsets"]) == 100, (
        "the commit that waited in the gateway would have set the offsets back"
    )


def test_a_killed_gateway_keeps_no_partitions_from_the_one_that_takes_over(
    cluster: EmbeddedCluster, gateways: list[httpx.Client]
) -> None:
    make_topic(gateways[1], cluster, "inherit", 10)
    base = make_instance(gateways[0], "g-inherit", "one", "inherit")
    assert len(read_until(cycle(gateways[:1]), base, 10)) == 10
    before = asyncio.run(members(cluster.bootstrap, "g-inherit"))
    cluster.gateways[1].kill()
    try:
        told = gateways[1].get(f"{base}/records?timeout=0", headers=ACCEPT_JSON)
        assert told.status_code == 200, told.text
        left = asyncio.run(members(cluster.bootstrap, "g-inherit"))
    finally:
        cluster.gateways[1].start()
        cluster.gateways[1].wait_ready(30)
    assert len(before) == 1
    assert not before & left, "the session of the dead member would end only later"


async def members(bootstrap: str, group: str) -> set[str]:
    async with Client(bootstrap) as client:
        described = await client.admin.describe_group(group)
        return {member.member_id for member in described.members}


def test_gateways_that_take_an_instance_over_at_once_agree_on_one(
    cluster: EmbeddedCluster, gateways: list[httpx.Client]
) -> None:
    make_topic(gateways[1], cluster, "race", 200)
    base = make_instance(gateways[0], "g-race", "one", "race")
    cluster.gateways[1].kill()
    values: list[int] = []
    deadline_s = time.monotonic() + DEADLINE_S

    def ask(gateway: httpx.Client) -> list[int]:
        told = gateway.get(f"{base}/records?timeout=300&max_bytes=200", headers=ACCEPT_JSON)
        if told.status_code != 200:
            assert (told.status_code, told.json()["error_code"]) == (503, 50003), told.text
            return []
        return [record["value"]["n"] for record in told.json()]

    try:
        with ThreadPoolExecutor(8) as threads:
            while len(values) < 200:
                assert time.monotonic() < deadline_s, f"only {len(values)} of 200 records came"
                for part in threads.map(ask, gateways[1:] * 4):
                    values += part
    finally:
        cluster.gateways[1].start()
        cluster.gateways[1].wait_ready(30)
    assert sorted(values) == list(range(200)), "two owners would have read records twice"


def test_a_rebalance_does_not_outlast_the_timeout_of_a_read(
    cluster: EmbeddedCluster, gateways: list[httpx.Client]
) -> None:
    make_topic(gateways[0], cluster, "rebalance", 0)
    first = make_instance(gateways[0], "g-rebalance", "m0", "rebalance")
    for number in range(1, 5):  # each join moves partitions of the others
        make_instance(gateways[number % 2], "g-rebalance", f"m{number}", "rebalance")
        began_s = time.monotonic()
        told = gateways[1].get(f"{first}/records?timeout=200", headers=ACCEPT_JSON)
        assert (told.status_code, told.json()) == (200, [])
        assert time.monotonic() - began_s < 10.0, "a session timeout, not 200 ms"


@pytest.mark.parametrize("asked", [0, 1], ids=["its gateway", "another gateway"])
def test_a_client_that_gives_up_leaves_the_instance_to_the_next_one(
    cluster: EmbeddedCluster, gateways: list[httpx.Client], asked: int
) -> None:
    """The client's poll ends when it disconnects, so the next request neither waits for it nor
    misses its records.
    """
    topic = f"gives-up-{asked}"
    make_topic(gateways[0], cluster, topic, 10)
    base = make_instance(gateways[0], f"g-{topic}", "one", topic)
    assert sorted(read_until(cycle(gateways[:1]), base, 10)) == list(range(10))
    for _ in range(3):
        with pytest.raises(httpx.ReadTimeout):
            gateways[asked].get(f"{base}/records?timeout=55000", headers=ACCEPT_JSON, timeout=0.3)
    began_s = time.monotonic()
    told = gateways[asked].get(f"{base}/records?timeout=0", headers=ACCEPT_JSON)
    assert (told.status_code, told.json()) == (200, [])
    assert time.monotonic() - began_s < 20.0, "it waited for the polls that nobody waits for"
    produce(gateways[0], topic, 10, 30)
    assert sorted(read_until(cycle(gateways), base, 30)) == list(range(10, 40))


def test_of_many_who_make_one_instance_at_once_one_succeeds(
    cluster: EmbeddedCluster, gateways: list[httpx.Client]
) -> None:
    def make(gateway: httpx.Client) -> tuple[int, object]:
        told = gateway.post("/consumers/g-once", json={"name": "one"}, headers=V2)
        return told.status_code, told.json().get("error_code")

    with ThreadPoolExecutor(9) as threads:
        told = list(threads.map(make, gateways * 3))
    assert sorted(told, key=str) == [(200, None)] + [(409, 40902)] * 8


def test_who_waited_behind_a_delete_finds_no_instance_and_joins_no_group(
    cluster: EmbeddedCluster, gateways: list[httpx.Client]
) -> None:
    make_topic(gateways[0], cluster, "deleted", 0)
    base = make_instance(gateways[0], "g-deleted", "one", "deleted")

    def at_work() -> float:
        text = gateways[0].get("/metrics").text
        return float(text.partition("\nodradek_gateway_requests_at_work ")[2].partition("\n")[0])

    def wait_for_requests(count: int) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while at_work() - 1 < count:  # the scrape is one itself
            assert time.monotonic() < deadline_s

    def ask(method: str, path: str) -> tuple[int, object]:
        told = gateways[0].request(method, f"{base}{path}", headers=ACCEPT_JSON)
        return told.status_code, told.json() if told.content else None

    with ThreadPoolExecutor(3) as threads:
        polling = threads.submit(ask, "GET", "/records?timeout=55000")
        wait_for_requests(1)
        deleting = threads.submit(ask, "DELETE", "")
        wait_for_requests(2)
        waiting = threads.submit(ask, "GET", "/records?timeout=0")
        wait_for_requests(3)
        produce(gateways[1], "deleted", 0, 1)  # ends the poll
        status, records = polling.result()
        assert (status, len(records)) == (200, 1)  # type: ignore[arg-type]
        assert deleting.result() == (204, None)
        status, body = waiting.result()
    assert (status, body["error_code"]) == (404, 40403)  # type: ignore[index]
    group = gateways[0].get(f"/v3/clusters/{cluster.cluster_id}/consumer-groups/g-deleted")
    assert group.json()["state"] == "EMPTY"


def test_an_assigned_instance_commits_by_itself_as_a_subscribed_one_does(
    cluster: EmbeddedCluster, gateways: list[httpx.Client]
) -> None:
    make_topic(gateways[0], cluster, "auto", 20)
    config = {"name": "a", "format": "json", "auto.offset.reset": "earliest"}
    assert gateways[0].post("/consumers/g-auto", json=config, headers=V2).status_code == 200
    base = "/consumers/g-auto/instances/a"
    both = {"partitions": [{"topic": "auto", "partition": p} for p in (0, 1)]}
    assert gateways[0].post(f"{base}/assignments", json=both, headers=V2).status_code == 204
    assert sorted(read_until(cycle(gateways[:1]), base, 20)) == list(range(20))
    assert gateways[0].delete(base).status_code == 204
    lags = gateways[0].get(f"/v3/clusters/{cluster.cluster_id}/consumer-groups/g-auto/lags")
    assert sum(one["current_offset"] for one in lags.json()["data"]) == 20


def test_instances_that_nobody_asks_for_expire_those_of_a_dead_gateway_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ODRADEK_GATEWAY_CONSUMER_INSTANCE_TIMEOUT_MS", "4000")
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, gateways=2)) as cluster:
        cluster.start()
        cluster.wait_ready()
        dying, living = (
            httpx.Client(base_url=u, timeout=60) for u in cluster.describe()["gateways"]
        )
        with dying, living:
            make_topic(living, cluster, "expire", 0)
            orphan = make_instance(dying, "g-orphan", "one", "expire")
            idle = make_instance(living, "g-idle", "one", "expire")
            used = make_instance(living, "g-used", "one", "expire")
            with in_use(str(living.base_url), used):
                cluster.gateways[1].kill()
                registry = {("__rest_consumers", 0)}
                deadline_s = time.monotonic() + DEADLINE_S
                while len(left := asyncio.run(registered(cluster.bootstrap, registry))) > 1:
                    assert time.monotonic() < deadline_s, left
                assert left == {("g-used", "one")}
            for base in (orphan, idle):
                told = living.get(f"{base}/records?timeout=0", headers=ACCEPT_JSON)
                assert (told.status_code, told.json()["error_code"]) == (404, 40403)
            groups = living.get(f"/v3/clusters/{cluster.cluster_id}/consumer-groups/g-idle").json()
            assert groups["state"] == "EMPTY"


@contextlib.contextmanager
def in_use(url: str, base: str) -> Iterator[None]:
    """For the block, poll an instance all the time, so that it expires on no machine, however slow."""
    is_over = threading.Event()

    def poll() -> None:
        with httpx.Client(base_url=url, timeout=60) as http:
            while not is_over.is_set():
                told = http.get(f"{base}/records?timeout=300", headers=ACCEPT_JSON)
                assert told.status_code == 200, told.text

    with ThreadPoolExecutor(1) as threads:
        polling = threads.submit(poll)
        try:
            yield
        finally:
            is_over.set()
        polling.result()


async def registered(bootstrap: str, registry: set[tuple[str, int]]) -> set[tuple[str, str]]:
    """Return the consumer instances in the topic that all gateways read."""
    found: dict[tuple[str, str], bytes | None] = {}
    async with (
        Client(bootstrap) as client,
        client.consumer(auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign(registry)
        (end,) = (await consumer.end_offsets(registry)).values()
        position = 0
        while position < end:
            for record in await consumer.getmany(1_000):
                group, name = json.loads(record.key or b"")
                found[(group, name)] = record.value
                position = record.offset + 1
    return {key for key, value in found.items() if value is not None}
