"""A transaction in one request: all of its records become visible, or none."""

from __future__ import annotations

from typing import Any

import pytest

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
