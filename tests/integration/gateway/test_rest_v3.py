"""Administration by REST v3 on a real cluster: values that were written can be read."""

from __future__ import annotations

import re
import time
from typing import Any

import httpx
import pytest

from tests.integration.gateway.conftest import Gateway

V2 = {"content-type": "application/vnd.kafka.v2+json"}
BINARY = {"content-type": "application/vnd.kafka.binary.v2+json"}
DEADLINE_S = 60.0  # so high that a slow machine does not exceed it
MOVE = re.compile(r"/partitions/[0-9]+/reassignment$")


def follow(gateway: Gateway, path: str) -> Any:
    told = gateway.http.get(path)
    assert told.status_code == 200, f"{path}: {told.text}"
    return told.json()


def test_links_lead_to_what_they_name(gateway: Gateway) -> None:
    """Every `related` and `self` link below the cluster can be requested, except that of a
    reassignment that does not exist.
    """
    topic = gateway.topic("links")
    seen: set[str] = set()
    todo = [str(gateway.http.base_url.copy_with(path=gateway.v3)), f"{gateway.v3}/topics/{topic}"]
    while todo and len(seen) < 60:
        url = todo.pop()
        if url in seen:
            continue
        seen.add(url)
        told = gateway.http.get(url)
        assert told.status_code == 200 or MOVE.search(url), f"{url}: {told.text}"
        queue: list[Any] = [told.json()]
        while queue:
            node = queue.pop()
            if isinstance(node, dict):
                todo += [node[key] for key in ("related", "self") if isinstance(node.get(key), str)]
                queue += node.values()
            elif isinstance(node, list):
                queue += node[:3]
    assert len(seen) > 20


def test_topic_configs_of_all_topics(gateway: Gateway) -> None:
    topic = gateway.topic("configs-of-all")
    changes = {"data": [{"name": "retention.ms", "value": "777"}]}
    url = f"{gateway.v3}/topics/{topic}/configs:alter"
    assert gateway.http.post(url, json=changes).status_code == 204
    found = follow(gateway, f"{gateway.v3}/topics/-/configs")["data"]
    ours = {one["name"]: one for one in found if one["topic_name"] == topic}
    assert ours["retention.ms"]["value"] == "777"
    assert ours["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert ours["cleanup.policy"]["is_default"] is True


@pytest.mark.parametrize(
    ("data", "status"),
    [
        ([{"name": "retention.ms", "value": "1000"}, {"name": "nosuch", "value": "1"}], 404),
        ([{"name": "retention.ms", "value": "1000"}, {"name": "segment.bytes", "value": "x"}], 400),
        ([{"name": "retention.ms", "value": "1000"}, {"name": "retention.ms"}], 422),
        ([{"name": "retention.ms"}], 422),
        ([], 422),
    ],
)
def test_several_configs_change_together_or_not_at_all(
    gateway: Gateway, data: list[dict[str, str]], status: int
) -> None:
    gateway.http.post(f"{gateway.v3}/topics", json={"topic_name": "together"})
    url = f"{gateway.v3}/topics/together/configs"
    before = follow(gateway, f"{url}/retention.ms")["value"]
    assert gateway.http.post(f"{url}:alter", json={"data": data}).status_code == status
    assert follow(gateway, f"{url}/retention.ms")["value"] == before


def test_validate_only_changes_nothing(gateway: Gateway) -> None:
    topic = gateway.topic("validate-only")
    url = f"{gateway.v3}/topics/{topic}/configs"
    good = {"data": [{"name": "retention.ms", "value": "4321"}], "validate_only": True}
    assert gateway.http.post(f"{url}:alter", json=good).status_code == 204
    assert follow(gateway, f"{url}/retention.ms")["value"] != "4321"
    bad = {"data": [{"name": "retention.ms", "value": "soon"}], "validate_only": True}
    assert gateway.http.post(f"{url}:alter", json=bad).status_code == 400
    new = {"topic_name": "never-made", "partitions_count": 1, "validate_only": True}
    told = gateway.http.post(f"{gateway.v3}/topics", json=new)
    assert told.status_code == 200
    assert (told.json()["partitions_count"], told.json()["replication_factor"]) == (1, 1)
    assert gateway.http.get(f"{gateway.v3}/topics/never-made").status_code == 404


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("count", ["partitions_count", "replication_factor"])
def test_a_topic_with_no_partition_or_no_replica_is_refused(
    gateway: Gateway, count: str, validate_only: bool
) -> None:
    """In gRPC's CreateTopics 0 stands for the cluster's default, but not in REST v3."""
    new = {"topic_name": "nothing", "validate_only": validate_only, count: 0}
    refused = gateway.http.post(f"{gateway.v3}/topics", json=new)
    assert (refused.status_code, refused.json()["error_code"]) == (400, 40002)
    assert f"{count} must be 1 or more" in refused.json()["message"]
    assert gateway.http.get(f"{gateway.v3}/topics/nothing").status_code == 404
    default = gateway.http.post(f"{gateway.v3}/topics", json={**new, count: -1})
    assert default.status_code == (200 if validate_only else 201)
    if not validate_only:
        assert gateway.http.delete(f"{gateway.v3}/topics/nothing").status_code == 204


def test_cluster_wide_configs_are_set_told_and_reset(gateway: Gateway) -> None:
    url = f"{gateway.v3}/broker-configs"
    name = "log.retention.ms"
    assert gateway.http.put(f"{url}/{name}", json={"value": "123456"}).status_code == 204
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while (told := gateway.http.get(f"{url}/{name}")).status_code != 200:
            assert time.monotonic() < deadline_s, told.text
        assert told.json()["value"] == "123456"
        assert told.json()["config_type"] == "BROKER"
        assert name in [one["name"] for one in follow(gateway, url)["data"]]
        of_broker = follow(gateway, f"{gateway.v3}/brokers/1/configs/{name}")
        assert (of_broker["value"], of_broker["source"]) == (
            "123456",
            "DYNAMIC_DEFAULT_BROKER_CONFIG",
        )
        everywhere = follow(gateway, f"{gateway.v3}/brokers/-/configs")["data"]
        assert {one["broker_id"] for one in everywhere} == {1}
    finally:
        assert gateway.http.delete(f"{url}/{name}").status_code == 204
    assert gateway.http.put(f"{url}/nosuch", json={"value": "1"}).status_code == 404


def test_partition_offsets_and_moves(gateway: Gateway) -> None:
    topic = gateway.topic("offsets-v3", partitions=1)
    records = {"records": [{"value": "aGk="}] * 3}
    assert gateway.http.post(f"/topics/{topic}", json=records, headers=BINARY).status_code == 200
    told = follow(gateway, f"{gateway.v3}/topics/{topic}/partitions/0/offset")
    assert (told["earliest_offset"], told["latest_offset"]) == (0, 3)
    assert gateway.http.get(f"{gateway.v3}/topics/{topic}/partitions/7/offset").status_code == 404
    for path in (f"{topic}/partitions/-", "-/partitions/-"):
        assert follow(gateway, f"{gateway.v3}/topics/{path}/reassignment")["data"] == []
    gone = gateway.http.get(f"{gateway.v3}/topics/{topic}/partitions/0/reassignment")
    assert gone.status_code == 404


def test_replicas_can_be_placed_by_hand(gateway: Gateway) -> None:
    placed = {
        "topic_name": "placed",
        "replicas_assignments": [{"partition_id": 0, "broker_ids": [1]}],
    }
    made = gateway.http.post(f"{gateway.v3}/topics", json=placed)
    assert (made.status_code, made.json()["partitions_count"]) == (201, 1)
    assert made.headers["location"].endswith("/topics/placed")
    nowhere = {"topic_name": "np", "replicas_assignments": [{"partition_id": 1, "broker_ids": [1]}]}
    assert gateway.http.post(f"{gateway.v3}/topics", json=nowhere).status_code == 422


def test_a_groups_consumers_assignments_and_lag(gateway: Gateway) -> None:
    topic = gateway.topic("lag-v3")
    records = {"records": [{"value": "aGk=", "partition": p} for p in (0, 0, 0, 1)]}
    assert gateway.http.post(f"/topics/{topic}", json=records, headers=BINARY).status_code == 200
    config = {"name": "one", "auto.offset.reset": "earliest", "auto.commit.enable": "false"}
    assert gateway.http.post("/consumers/g-v3", json=config, headers=V2).status_code == 200
    base = "/consumers/g-v3/instances/one"
    wanted = {"topics": [topic]}
    assert gateway.http.post(f"{base}/subscription", json=wanted, headers=V2).status_code == 204
    read, deadline_s = 0, time.monotonic() + DEADLINE_S
    while read < 4:
        assert time.monotonic() < deadline_s
        read += len(gateway.http.get(f"{base}/records?timeout=500").json())
    last = {"offsets": [{"topic": topic, "partition": 0, "offset": 0}]}
    assert gateway.http.post(f"{base}/offsets", json=last, headers=V2).status_code == 200

    group = f"{gateway.v3}/consumer-groups/g-v3"
    assert "g-v3" in [
        one["consumer_group_id"] for one in follow(gateway, f"{gateway.v3}/consumer-groups")["data"]
    ]
    (member,) = follow(gateway, f"{group}/consumers")["data"]
    owned = follow(gateway, member["assignments"]["related"])["data"]
    assert sorted((one["topic_name"], one["partition_id"]) for one in owned) == [
        (topic, 0),
        (topic, 1),
    ]
    for one in owned:
        assert follow(gateway, one["metadata"]["self"]) == one
        follow(gateway, one["partition"]["related"])
    nobody = f"{group}/consumers/{member['consumer_id']}/assignments/{topic}/partitions/9"
    assert gateway.http.get(nobody).status_code == 404
    (lag,) = follow(gateway, f"{group}/lags")["data"]
    assert (lag["current_offset"], lag["log_end_offset"], lag["lag"]) == (1, 3, 2)
    assert lag["consumer_id"] == member["consumer_id"]
    summary = follow(gateway, f"{group}/lag-summary")
    assert (summary["max_lag"], summary["total_lag"]) == (2, 2)
    assert follow(gateway, f"{group}/lags/{topic}/partitions/0") == lag


def test_lag_is_told_of_the_topics_that_there_still_are(gateway: Gateway) -> None:
    topics = [gateway.topic(name, partitions=1) for name in ("lag-stays", "lag-goes")]
    assert gateway.http.post("/consumers/g-gone", json={"name": "x"}, headers=V2).is_success
    base = "/consumers/g-gone/instances/x"
    partitions = [{"topic": topic, "partition": 0} for topic in topics]
    assigned = gateway.http.post(f"{base}/assignments", json={"partitions": partitions}, headers=V2)
    assert assigned.status_code == 204
    offsets = {"offsets": [{**one, "offset": 0} for one in partitions]}
    assert gateway.http.post(f"{base}/offsets", json=offsets, headers=V2).status_code == 200
    group = f"{gateway.v3}/consumer-groups/g-gone"
    assert {one["topic_name"] for one in follow(gateway, f"{group}/lags")["data"]} == set(topics)
    assert gateway.http.delete(f"{gateway.v3}/topics/lag-goes").status_code == 204
    deadline_s = time.monotonic() + DEADLINE_S
    while gateway.http.get(f"{gateway.v3}/topics/lag-goes").status_code != 404:
        assert time.monotonic() < deadline_s
    assert [one["topic_name"] for one in follow(gateway, f"{group}/lags")["data"]] == ["lag-stays"]
    assert follow(gateway, f"{group}/lag-summary")["max_lag_topic_name"] == "lag-stays"


def test_instances_seek_to_times(gateway: Gateway) -> None:
    topic = gateway.topic("times", partitions=1)
    start_ms = 1_700_000_000_000
    records = {"records": [{"value": "aGk=", "timestamp": start_ms + 1_000 * n} for n in range(5)]}
    assert gateway.http.post(f"/topics/{topic}", json=records, headers=BINARY).status_code == 200
    assert gateway.http.post("/consumers/g-t", json={"name": "t"}, headers=V2).status_code == 200
    base = "/consumers/g-t/instances/t"
    at = {"topic": topic, "partition": 0}
    assigned = gateway.http.post(f"{base}/assignments", json={"partitions": [at]}, headers=V2)
    assert assigned.status_code == 204
    seek = {"timestamps": [{**at, "timestamp": "2023-11-14T22:13:22Z"}]}  # start + 2 s
    assert gateway.http.post(f"{base}/positions", json=seek, headers=V2).status_code == 204
    offsets: list[int] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(offsets) < 3:
        assert time.monotonic() < deadline_s
        told = gateway.http.get(f"{base}/records?timeout=500").json()
        offsets += [one["offset"] for one in told]
        assert all(one["timestamp"] == start_ms + 1_000 * one["offset"] for one in told)
    assert offsets == [2, 3, 4]


def test_json_numbers_of_any_size_come_back_as_they_were(gateway: Gateway) -> None:
    topic = gateway.topic("numbers", partitions=1)
    value = b'{"n": 12345678901234567890123456789, "f": 1.10, "u": "\\u00e9"}'
    kind = "application/vnd.kafka.json.v2+json"
    told = gateway.http.post(
        f"/topics/{topic}",
        content=b'{"records": [{"value": %b}]}' % value,
        headers={"content-type": kind},
    )
    assert told.status_code == 200
    config = {"name": "n", "format": "json", "auto.offset.reset": "earliest"}
    assert gateway.http.post("/consumers/g-n", json=config, headers=V2).status_code == 200
    base = "/consumers/g-n/instances/n"
    at = {"partitions": [{"topic": topic, "partition": 0}]}
    assert gateway.http.post(f"{base}/assignments", json=at, headers=V2).status_code == 204
    read = gateway.http.get(f"{base}/records?timeout=20000", headers={"accept": kind})
    assert value in read.content


def test_a_record_that_is_not_of_the_format_is_told_and_never_skipped(gateway: Gateway) -> None:
    topic = gateway.topic("poison", partitions=1)
    for content, headers in (
        (b'{"records": [{"value": 1}]}', {"content-type": "application/vnd.kafka.json.v2+json"}),
        (b'{"records": [{"value": "////"}]}', BINARY),
        (b'{"records": [{"value": 3}]}', {"content-type": "application/vnd.kafka.json.v2+json"}),
    ):
        assert gateway.http.post(f"/topics/{topic}", content=content, headers=headers).is_success
    config = {"name": "p", "format": "json", "auto.offset.reset": "earliest"}
    assert gateway.http.post("/consumers/g-p", json=config, headers=V2).status_code == 200
    base = "/consumers/g-p/instances/p"
    at = {"topic": topic, "partition": 0}
    assigned = gateway.http.post(f"{base}/assignments", json={"partitions": [at]}, headers=V2)
    assert assigned.status_code == 204

    def read() -> httpx.Response:
        accept = {"accept": "application/vnd.kafka.json.v2+json"}
        return gateway.http.get(f"{base}/records?timeout=20000", headers=accept)

    assert [one["value"] for one in read().json()] == [1]
    for _ in range(2):
        bad = read()
        assert (bad.status_code, bad.json()["error_code"]) == (422, 42203)
        assert "seek to offset" in bad.json()["message"]
        assert f"{topic}-0 at offset 1" in bad.json()["message"]
    beyond = {"offsets": [{**at, "offset": 2}]}
    assert gateway.http.post(f"{base}/positions", json=beyond, headers=V2).status_code == 204
    assert [one["value"] for one in read().json()] == [3]


def test_405_tells_every_method_that_the_path_has(gateway: Gateway) -> None:
    told = gateway.http.put("/topics/any")
    assert told.status_code == 405
    assert told.json()["error_code"] == 405
    assert told.headers["allow"] == "GET, POST"


def test_fetch_min_bytes_waits_for_them_and_the_timeout_ends_it(gateway: Gateway) -> None:
    topic = gateway.topic("min-bytes", partitions=1)
    one = {"records": [{"value": "aGk="}]}
    assert gateway.http.post(f"/topics/{topic}", json=one, headers=BINARY).status_code == 200
    at = {"partitions": [{"topic": topic, "partition": 0}]}
    for name, minimum, expected_s in (("few", -1, 0.0), ("many", 1_000, 1.5)):
        config = {"name": name, "auto.offset.reset": "earliest", "fetch.min.bytes": minimum}
        assert gateway.http.post("/consumers/g-min", json=config, headers=V2).status_code == 200
        base = f"/consumers/g-min/instances/{name}"
        assert gateway.http.post(f"{base}/assignments", json=at, headers=V2).status_code == 204
        began_s = time.monotonic()
        told = gateway.http.get(f"{base}/records?timeout=1500")
        took_s = time.monotonic() - began_s
        if minimum > 0:
            assert took_s >= expected_s, "it did not wait for more"
        assert len(told.json()) == 1
