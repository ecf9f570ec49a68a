"""The gateway on a real cluster: the form of its responses, media types, and errors."""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.client
import json
from typing import Any

import pytest

from tests.integration.gateway.conftest import Gateway

BINARY = {"content-type": "application/vnd.kafka.binary.v2+json"}
JSON = {"content-type": "application/vnd.kafka.json.v2+json"}


PLAIN_JSON = {"content-type": "application/json"}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_v2_produces_and_tells_offsets(gateway: Gateway) -> None:
    topic = gateway.topic("v2-produce")
    records = [
        {"key": b64(b"k"), "value": b64(b"v"), "headers": [{"name": "h", "value": b64(b"x")}]},
        {"value": None, "partition": 1},
    ]
    told = gateway.http.post(f"/topics/{topic}", json={"records": records}, headers=BINARY)
    assert told.status_code == 200
    assert told.headers["content-type"] == "application/vnd.kafka.v2+json"
    assert [o["error_code"] for o in told.json()["offsets"]] == [None, None]
    assert told.json()["offsets"][1]["partition"] == 1
    ends = gateway.http.get(f"/topics/{topic}/partitions/1/offsets").json()
    assert ends["beginning_offset"] == 0
    assert ends["end_offset"] >= 1


def test_v2_tells_errors_of_single_records_inside_200(gateway: Gateway) -> None:
    topic = gateway.topic("v2-record-errors")
    body = {"records": [{"value": {"a": [1]}}, {"value": 1, "partition": 9}]}
    told = gateway.http.post(f"/topics/{topic}", json=body, headers=JSON)
    assert told.status_code == 200
    good, bad = told.json()["offsets"]
    assert good["error_code"] is None
    assert bad["error_code"] == 40402
    assert "partitions 0 to 1" in bad["error"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"", BINARY, 422, 422),
        (b"{", BINARY, 400, 400),
        (b"[]", BINARY, 422, 422),
        (b'{"records": []}', BINARY, 422, 422),
        (b'{"records": [{"value": "not base64!"}]}', BINARY, 422, 422),
        (b'{"records": [{"value": "", "extra": 1}]}', BINARY, 422, 422),
        (b'{"records": [{"value": "", "partition": -1}]}', BINARY, 422, 422),
        (b"{}", {"content-type": "text/plain"}, 415, 415),
        (b"{}", {"content-type": "application/vnd.kafka.avro.v2+json"}, 415, 415),
        (b'{"records": [{"value": ""}]}', {**BINARY, "accept": "text/html"}, 406, 406),
    ],
)
def test_v2_refuses_bad_requests_and_writes_nothing(
    gateway: Gateway, body: bytes, headers: dict[str, str], status: int, code: int
) -> None:
    name = "v2-bad"
    gateway.http.post(f"{gateway.v3}/topics", json={"topic_name": name, "partitions_count": 1})
    told = gateway.http.post(f"/topics/{name}", content=body, headers=headers)
    assert (told.status_code, told.json()["error_code"]) == (status, code)
    assert gateway.http.get(f"/topics/{name}/partitions/0/offsets").json()["end_offset"] == 0


def test_a_body_above_the_limit_is_413_before_it_is_read(gateway: Gateway) -> None:
    url = gateway.http.base_url
    connection = http.client.HTTPConnection(url.host, url.port, timeout=10)
    with contextlib.closing(connection):
        connection.putrequest("POST", "/topics/any")
        connection.putheader("content-type", BINARY["content-type"])
        connection.putheader("content-length", str(1 << 40))
        connection.endheaders()
        assert connection.getresponse().status == 413


def test_v3_streams_records_with_an_answer_each_in_order(gateway: Gateway) -> None:
    topic = gateway.topic("v3-stream", partitions=1)
    count = 2_500
    lines = b"\n".join(
        json.dumps({"value": {"type": "JSON", "data": {"n": n, "brace": '}{"'}}}).encode()
        for n in range(count)
    )

    def pieces() -> Any:
        for start in range(0, len(lines), 777):
            yield lines[start : start + 777]

    told = gateway.http.post(
        f"{gateway.v3}/topics/{topic}/records", content=pieces(), headers=PLAIN_JSON
    )
    answers = [json.loads(line) for line in told.text.splitlines()]
    assert [a["offset"] for a in answers] == list(range(count))
    assert {a["error_code"] for a in answers} == {200}


def test_v3_tells_a_bad_record_in_its_place(gateway: Gateway) -> None:
    topic = gateway.topic("v3-bad-record", partitions=1)
    content = (
        b'{"value":{"type":"STRING","data":"a"}}{"value":3}{"value":{"type":"STRING","data":"b"}}'
    )
    told = gateway.http.post(
        f"{gateway.v3}/topics/{topic}/records", content=content, headers=PLAIN_JSON
    )
    answers = [json.loads(line) for line in told.text.splitlines()]
    assert [a["error_code"] for a in answers] == [200, 42206, 200]


def test_v3_tells_a_records_own_time_and_the_sizes_that_were_written(gateway: Gateway) -> None:
    topic = gateway.topic("v3-time", partitions=1)
    record = {
        "key": {"type": "BINARY", "data": b64(b"abc")},
        "value": {"type": "JSON", "data": {"a": 1}},
        "timestamp": "2020-02-03T04:05:06.789Z",
    }
    url = f"{gateway.v3}/topics/{topic}/records"
    told = gateway.http.post(url, json=record).json()
    assert told["timestamp"] == "2020-02-03T04:05:06.789+00:00"
    assert told["key"] == {"type": "BINARY", "size": 3}
    assert told["value"] == {"type": "JSON", "size": 7}
    record.pop("timestamp")
    record.pop("key")
    told = gateway.http.post(url, json=record).json()
    assert "key" not in told
    config = {"name": "t", "format": "json", "auto.offset.reset": "earliest"}
    v2 = {"content-type": "application/vnd.kafka.v2+json"}
    assert gateway.http.post("/consumers/g-time", json=config, headers=v2).is_success
    base = "/consumers/g-time/instances/t"
    at = {"topic": topic, "partition": 0}
    assert gateway.http.post(
        f"{base}/assignments", json={"partitions": [at]}, headers=v2
    ).is_success
    assert gateway.http.post(
        f"{base}/positions", json={"offsets": [{**at, "offset": 1}]}, headers=v2
    ).is_success
    read = gateway.http.get(
        f"{base}/records?timeout=20000", headers={"accept": JSON["content-type"]}
    )
    written_ms = datetime.datetime.fromisoformat(told["timestamp"]).timestamp() * 1000
    assert [one["timestamp"] for one in read.json()] == [round(written_ms)]


def test_v3_topics_live_and_die(gateway: Gateway) -> None:
    topic = gateway.topic("v3-life")
    base = f"{gateway.v3}/topics/{topic}"
    assert gateway.http.patch(base, json={"partitions_count": 4}).json()["partitions_count"] == 4
    assert (
        gateway.http.put(f"{base}/configs/retention.ms", json={"value": "5000"}).status_code == 204
    )
    assert gateway.http.get(f"{base}/configs/retention.ms").json()["value"] == "5000"
    assert (
        gateway.http.put(f"{base}/configs/retention.ms", json={"value": "abc"}).status_code == 400
    )
    assert gateway.http.get(f"{base}/configs/nosuch").status_code == 404
    changes = {
        "data": [
            {"name": "retention.ms", "operation": "DELETE"},
            {"name": "segment.bytes", "value": "1048576"},
        ]
    }
    assert gateway.http.post(f"{base}/configs:alter", json=changes).status_code == 204
    assert gateway.http.get(f"{base}/partitions/3/replicas/1").json()["is_leader"] is True
    assert gateway.http.delete(base).status_code == 204
    assert gateway.http.get(base).status_code == 404


def test_v3_batches_tell_successes_and_failures_apart(gateway: Gateway) -> None:
    topic = gateway.topic("v3-batch")
    entries = [
        {"id": "1", "value": {"type": "STRING", "data": "z"}},
        {"id": "2", "value": {"type": "FOO", "data": "z"}},
    ]
    told = gateway.http.post(
        f"{gateway.v3}/topics/{topic}/records:batch", json={"entries": entries}
    )
    assert told.status_code == 207
    assert [s["id"] for s in told.json()["successes"]] == ["1"]
    assert [f["id"] for f in told.json()["failures"]] == ["2"]


def test_another_clusters_id_is_404(gateway: Gateway) -> None:
    assert gateway.http.get("/v3/clusters/other/topics").status_code == 404


def test_every_answer_has_security_headers_and_no_open_cors(gateway: Gateway) -> None:
    told = gateway.http.get("/topics", headers={"origin": "http://evil.example"})
    assert told.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in told.headers
