"""A transaction in one request: all of its records become visible, or none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from odradek import Client
from tests.integration.gateway.conftest import Gateway


def record(topic: str, value: str, **fields: Any) -> dict[str, Any]:
    return {"topic_name": topic, "value": {"type": "STRING", "data": value}, **fields}


def ends(gateway: Gateway, topic: str) -> list[int]:
    """Return the end offsets of a topic's partitions."""
    offsets = []
    partitions = gateway.http.get(f"/topics/{topic}/partitions").json()
    for partition in partitions:
        found = gateway.http.get(f"/topics/{topic}/partitions/{partition['partition']}/offsets")
        offsets.append(found.json()["end_offset"])
    return offsets


def test_records_of_several_topics_are_committed_together(gateway: Gateway) -> None:
    first, second = gateway.topic("committed-a"), gateway.topic("committed-b")
    for _ in range(3):
        records = [record(first, "a", partition_id=0), record(second, "b", partition_id=0)]
        done = gateway.http.post(f"{gateway.v3}/transactions", json={"records": records})
        assert done.status_code == 200, done.text
        body = done.json()
        assert body["outcome"] == "committed"
        assert [r["topic_name"] for r in body["records"]] == [first, second]
    # A record and a marker each time.
    assert [r["offset"] for r in body["records"]] == [4, 4]


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"partition_id": 999}, 404),
        ({"value": {"type": "BINARY", "data": "?"}}, 422),
        ({"topic_name": "bad topic!"}, 422),
    ],
)
def test_one_bad_record_leaves_nothing(
    gateway: Gateway, wrong: dict[str, Any], status: int
) -> None:
    topic = gateway.topic(f"refused-{next(iter(wrong))}-{status}-{len(str(wrong))}")
    before = ends(gateway, topic)
    records = [record(topic, "good"), record(topic, "bad") | wrong]
    refused = gateway.http.post(f"{gateway.v3}/transactions", json={"records": records})
    assert refused.status_code == status, refused.text
    assert ends(gateway, topic) == before


def test_bounds(gateway: Gateway) -> None:
    topic = gateway.topic("bounds")
    for records in ([], [record(topic, "x")] * 1_001):
        refused = gateway.http.post(f"{gateway.v3}/transactions", json={"records": records})
        assert refused.status_code == 422, refused.text


@pytest.mark.parametrize("way", ["subscription", "assignments"])
async def test_a_consumer_instance_reads_committed_records_only(gateway: Gateway, way: str) -> None:
    topic = gateway.topic(f"isolated-{way}", partitions=1)
    async with (
        Client(gateway.cluster.bootstrap) as client,
        client.producer(transactional_id=topic) as producer,
    ):
        for value in (b'"aborted"', b'"committed"'):
            async with producer.transaction() as transaction:
                await producer.send_and_wait(topic, value)
                if value == b'"aborted"':
                    await transaction.abort()
    body: dict[str, Any] = {"topics": [topic]}
    if way == "assignments":
        body = {"partitions": [{"topic": topic, "partition": 0}]}
    reads = {
        level: consumed(gateway, f"{topic}-{level}", {"isolation.level": level}, (way, body))
        for level in ("read_committed", "read_uncommitted")
    }
    assert reads == {
        "read_committed": ["committed"],
        "read_uncommitted": ["aborted", "committed"],
    }


def consumed(
    gateway: Gateway,
    group: str,
    config: dict[str, str],
    place: tuple[str, dict[str, Any]],
) -> Sequence[str]:
    """Return the values that a new consumer instance reads, from the earliest one to the committed one."""
    v2 = {"content-type": "application/vnd.kafka.v2+json"}
    config = {"format": "json", "auto.offset.reset": "earliest", **config}
    made = gateway.http.post(f"/consumers/{group}", json=config, headers=v2)
    assert made.status_code == 200, made.text
    base = f"/consumers/{group}/instances/{made.json()['instance_id']}"
    way, body = place
    assert gateway.http.post(f"{base}/{way}", json=body, headers=v2).status_code == 204
    if way == "assignments":
        gateway.http.post(f"{base}/positions/beginning", json=body, headers=v2)
    values: list[str] = []
    deadline_s = time.monotonic() + 30
    while "committed" not in values:
        assert time.monotonic() < deadline_s, values
        accept = {"accept": "application/vnd.kafka.json.v2+json"}
        told = gateway.http.get(f"{base}/records?timeout=500", headers=accept)
        assert told.status_code == 200, told.text
        values += [record["value"] for record in told.json()]
    gateway.http.delete(base)
    return values


def test_an_unknown_isolation_level_is_refused(gateway: Gateway) -> None:
    config = {"isolation.level": "serializable"}
    v2 = {"content-type": "application/vnd.kafka.v2+json"}
    refused = gateway.http.post("/consumers/g-isolated", json=config, headers=v2)
    assert refused.status_code == 422, refused.text
