"""No request to any route blocks a gateway's event loop for long without a pause, however large the
cluster is.

The routes, their parameters and the largest bodies come from the gateway's openapi.json, so that a
new route is tested automatically. The cluster has thousands of topics, groups and ACLs, a topic of
thousands of partitions, and a member that reads all of them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest

from odradek.admin.access import Acl, AclOperation, AclPermission, ResourceType
from odradek.admin.admin import Admin
from odradek.admin.descriptions import NewTopic
from odradek.client import Client
from odradek.errors import TopicExists
from tests.integration.broker.broker_cluster import BrokerCluster
from tests.integration.broker.test_loop_held import ATTEMPTS_MAX, HELD_S_MAX, _lines, _worst
from tests.integration.gateway.test_gateway_held import gateway

AT_ONCE: Final = 500
SETTING_UP_S: Final = 300.0
V2: Final = "application/vnd.kafka.v2+json"
READER: Final = "/consumers/crowd/instances/reader"
ALONE: Final = "/consumers/alone/instances/assigned"
METHODS: Final = ("get", "post", "put", "patch", "delete")
BY_NAME: Final[dict[str, Any]] = {
    "topic": "wide",
    "broker_ids": [1],
    "broker_id": 1,
    "principal": "User:alice",
    "resource_name": "wide",
    "name": "retention.ms",
    "value": "100000",
    "timestamp": "2026-01-01T00:00:00Z",
}


class RouteCall(NamedTuple):
    """One request, and the name of the array in its body that is full."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: Any
    full: str


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.timeout(1800)
async def test_no_route_keeps_a_gateway_for_long(count: int, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    async with BrokerCluster(tmp_path) as cluster:
        await _fill(cluster, count)
        async with gateway(tmp_path, held, cluster) as http:
            names = await _prepared(http, count)
            described = (await http.get("/openapi.json")).json()
            too_long: list[str] = []
            for call in sorted(_calls(described, names, count), key=_order):
                for _ in range(1 if call.method == "delete" else ATTEMPTS_MAX):
                    worst, what = await _held_by(http, held, call)
                    if worst <= HELD_S_MAX:
                        break
                else:
                    too_long.append(f"{call.method} {call.path} {call.full}: {worst} s in {what}")
    assert not too_long, "\n".join(too_long)


async def _fill(cluster: BrokerCluster, count: int) -> None:
    """Create everything that the routes describe."""
    # Groups come first: while a broker makes thousands of logs, theirs would wait.
    await cluster.create_topic("first")
    endpoint = cluster.brokers[1].endpoint
    async with Client(endpoint) as client, Admin(endpoint, timeout_s=SETTING_UP_S) as admin:
        groups = iter([f"group-{number:05}" for number in range(count)])

        async def commit() -> None:
            for group in groups:
                await admin.alter_group_offsets(group, {("first", 0): 0})

        await asyncio.gather(*(commit() for _ in range(16)))
        await cluster.create_topic("wide", partitions=count)
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            topics = [NewTopic(name=f"topic-{number:05}", partitions=1) for number in numbers]
            for outcome in await admin.create_topics(topics):
                # A request that took long may have been sent again.
                assert outcome.error is None or isinstance(outcome.error, TopicExists), outcome
            await admin.create_acls(
                Acl(
                    resource_type=ResourceType.TOPIC,
                    resource_name=f"topic-{number:05}",
                    principal=f"User:user-{number}",
                    operation=AclOperation.READ,
                    permission=AclPermission.ALLOW,
                )
                for number in numbers
            )
        producer = client.producer(linger_ms=5)
        for number in range(min(count, 5_000)):
            await producer.send("wide", b"value", partition=number % 10)
        await producer.close(30)


async def _prepared(http: httpx.AsyncClient, count: int) -> dict[str, str]:
    """Create a consumer instance in a group and one without a group; return the values of path
    parameters.
    """
    (found,) = (await http.get("/v3/clusters")).json()["data"]
    partitions = [{"topic": "wide", "partition": index} for index in range(count)]
    offsets = [{**partition, "offset": 0} for partition in partitions]
    earliest = {"auto.offset.reset": "earliest"}
    for path, body in (
        ("/consumers/crowd", {"name": "reader", **earliest}),
        (f"{READER}/subscription", {"topics": ["wide"]}),
        ("/consumers/alone", {"name": "assigned", **earliest}),
        (f"{ALONE}/assignments", {"partitions": partitions}),
    ):
        response = await http.post(path, json=body, headers={"content-type": V2})
        assert response.status_code < 300, response.text[:500]
    for _ in range(100):  # until the group has assigned all partitions
        records = await http.get(f"{READER}/records", params={"timeout": "500"})
        assigned = await http.get(f"{READER}/assignments")
        if records.status_code == 200 and len(assigned.json()["partitions"]) == count:
            break
    committed = await http.post(
        f"{READER}/offsets", json={"offsets": offsets}, headers={"content-type": V2}
    )
    assert committed.status_code == 200, committed.text[:500]
    members = f"/v3/clusters/{found['cluster_id']}/consumer-groups/crowd/consumers"
    (member,) = (await http.get(members)).json()["data"]
    return {
        "cluster_id": found["cluster_id"],
        "topic": "wide",
        "partition": "1",
        "broker_id": "1",
        "group": "crowd",
        "consumer": member["consumer_id"],
        "instance": "reader",
        "name": "retention.ms",
    }


def _calls(described: dict[str, Any], names: dict[str, str], count: int) -> Iterator[RouteCall]:
    for path, item in described["paths"].items():
        filled = re.sub(r"\{([^}]+)\}", lambda found: names[found[1]], path)
        if path.endswith("/assignments") or "/positions" in path:
            filled = filled.replace(READER, ALONE)
        if "broker" in path and "config" in path:
            filled = filled.replace("retention.ms", "log.retention.ms")
        for method, operation in item.items():
            query = {
                parameter["name"]: "ANY"
                for parameter in operation.get("parameters", ())
                if parameter["in"] == "query" and parameter.get("required")
            }
            if path.endswith("/records") and method == "get":
                query = {"timeout": "1000"}
            content = operation.get("requestBody", {}).get("content", {})
            if not content:
                yield RouteCall(method, filled, query, "", None, "")
            for content_type, body in content.items():
                for full, made in _largest(body["schema"], count):
                    yield RouteCall(method, filled, query, content_type, made, full)


def _order(call: RouteCall) -> tuple[int, bool, str]:
    """Return the key by which calls are sorted: reads come first, then changes; the topic and the
    instances are deleted last.
    """
    return METHODS.index(call.method), call.path.endswith("/subscription"), call.path


def _largest(schema: dict[str, Any], count: int) -> Iterator[tuple[str, Any]]:
    """Yield bodies of a schema: one for each array, with as many items as are allowed, and one
    without any array.
    """
    properties = schema.get("properties", {})
    required = set(schema.get("required", ()))
    basis = {name: _value(name, properties[name], 0, count) for name in required}
    arrays = {name: array for name in properties if (array := _array_of(properties[name]))}
    for name, array in arrays.items():
        length = min(count, array.get("maxItems", count))
        items = [_value(name, array["items"], number, count) for number in range(length)]
        yield name, {**basis, name: items}
    if not required & arrays.keys():
        rest = {
            name: _value(name, one, 0, count)
            for name, one in properties.items()
            if name not in arrays and name.endswith("_count")
        }
        yield "", {**basis, **rest}


def _array_of(schema: dict[str, Any]) -> dict[str, Any] | None:
    for option in (schema, *schema.get("anyOf", ())):
        if option.get("type") == "array":
            return dict(option)
    return None


def _value(name: str, schema: dict[str, Any], number: int, count: int) -> Any:
    """Return a value of a schema; values with different numbers differ."""
    if "anyOf" in schema and "type" not in schema:
        schema = schema["anyOf"][0]
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        return {
            inner: _value(inner, one, number, count)
            for inner, one in schema.get("properties", {}).items()
            if inner in schema.get("required", ()) or inner == "value"
        }
    if _array_of(schema):
        return BY_NAME.get(name, [])
    if name in ("partition", "partition_id"):
        return number
    if name == "partitions_count":
        return count + 1
    if name in ("topics", "topic_name"):
        return f"topic-{number:05}" if name == "topics" else "another"
    if name in BY_NAME:
        return BY_NAME[name]
    if schema.get("type") == "integer":
        return max(0, schema.get("minimum", 0))
    return f"x{number}"


async def _held_by(http: httpx.AsyncClient, held: Path, call: RouteCall) -> tuple[float, str]:
    """Send a request; return the longest time for which it blocked the event loop, and the function
    that ran.
    """
    before = len(_lines(held))
    response = await http.request(
        call.method,
        call.path,
        params=call.query,
        content=None if call.body is None else json.dumps(call.body),
        headers={"content-type": call.content_type} if call.content_type else {},
    )
    await http.get("/livez")  # the callback that responded has ended
    worst, collecting, what = _worst(_lines(held)[before:])
    print(
        f"{worst * 1000:7.1f} ms {collecting * 1000:6.1f} ms gc {response.status_code}"
        f" {len(response.content):>9} B  {call.method} {call.path[:120]} {call.full}  {what[:200]}",
        flush=True,
    )
    assert response.status_code < 500, response.text[:1000]
    if call.method == "get":
        may_lack = "reassignment" in call.path or "/broker-configs/" in call.path
        assert response.status_code < 300 or may_lack, response.text[:1000]
    return worst, what
