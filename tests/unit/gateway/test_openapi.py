"""openapi.json against the API's list: every path and status is listed, and every response has a schema."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import pytest
from fastapi.routing import APIRoute

from odradek_gateway.app import create_app
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.v2.instances import Instances
from odradek_gateway.settings import GatewaySettings

I = "/consumers/{group}/instances/{instance}"  # noqa: E741 - as long as a path wants its base
V3 = "/v3/clusters/{cluster_id}"
READ = (404, 406, 500, 503)
PRODUCE = (400, 401, 403, 404, 406, 413, 415, 422, 429, 500, 503)
INSTANCE = (400, 404, 406, 409, 415, 422, 429, 500, 503)
V3_READ = (401, 403, 404, 429, 500, 503)
V3_WRITE = (400, 401, 403, 404, 413, 415, 422, 429, 500, 503)
# method, path, statuses of success, statuses of failure: Confluent's REST API v2 and v3 as users expect it
ROUTES: list[tuple[str, str, tuple[int, ...], tuple[int, ...]]] = [
    ("get", "/", (200,), (406,)),
    ("get", "/topics", (200,), (406, 500, 503)),
    ("get", "/topics/{topic}", (200,), READ),
    ("post", "/topics/{topic}", (200,), PRODUCE),
    ("get", "/topics/{topic}/partitions", (200,), READ),
    ("get", "/topics/{topic}/partitions/{partition}", (200,), READ),
    ("post", "/topics/{topic}/partitions/{partition}", (200,), PRODUCE),
    ("get", "/topics/{topic}/partitions/{partition}/offsets", (200,), READ),
    ("get", "/brokers", (200,), (406, 500, 503)),
    ("post", "/consumers/{group}", (200,), INSTANCE),
    ("delete", I, (204,), INSTANCE),
    *[("post", f"{I}/{what}", (204,), INSTANCE) for what in ("subscription", "assignments")],
    *[("get", f"{I}/{what}", (200,), INSTANCE) for what in ("subscription", "assignments")],
    ("delete", f"{I}/subscription", (204,), INSTANCE),
    ("get", f"{I}/records", (200,), INSTANCE),
    ("post", f"{I}/offsets", (200,), INSTANCE),
    ("get", f"{I}/offsets", (200,), INSTANCE),
    ("post", f"{I}/positions", (204,), INSTANCE),
    ("post", f"{I}/positions/beginning", (204,), INSTANCE),
    ("post", f"{I}/positions/end", (204,), INSTANCE),
    ("get", "/v3/clusters", (200,), (401, 403, 429, 500, 503)),
    *[
        ("get", f"{V3}{path}", (200,), V3_READ)
        for path in (
            "",
            "/topics",
            "/topics/{topic}",
            "/topics/{topic}/configs",
            "/topics/{topic}/configs/{name}",
            "/topics/-/configs",
            "/topics/{topic}/partitions",
            "/topics/{topic}/partitions/{partition}",
            "/topics/{topic}/partitions/{partition}/offset",
            "/topics/{topic}/partitions/{partition}/replicas",
            "/topics/{topic}/partitions/{partition}/replicas/{broker_id}",
            "/topics/{topic}/partitions/{partition}/reassignment",
            "/topics/{topic}/partitions/-/reassignment",
            "/topics/-/partitions/-/reassignment",
            "/brokers",
            "/brokers/{broker_id}",
            "/brokers/{broker_id}/configs",
            "/brokers/{broker_id}/configs/{name}",
            "/brokers/-/configs",
            "/brokers/{broker_id}/partition-replicas",
            "/broker-configs",
            "/broker-configs/{name}",
            "/consumer-groups",
            "/consumer-groups/{group}",
            "/consumer-groups/{group}/consumers",
            "/consumer-groups/{group}/consumers/{consumer}",
            "/consumer-groups/{group}/consumers/{consumer}/assignments",
            "/consumer-groups/{group}/consumers/{consumer}/assignments/{topic}/partitions/{partition}",
            "/consumer-groups/{group}/lag-summary",
            "/consumer-groups/{group}/lags",
            "/consumer-groups/{group}/lags/{topic}/partitions/{partition}",
            "/acls",
        )
    ],
    ("post", f"{V3}/topics", (200, 201), V3_WRITE),
    ("patch", f"{V3}/topics/{{topic}}", (200,), V3_WRITE),
    ("delete", f"{V3}/topics/{{topic}}", (204,), V3_READ),
    *[
        (method, f"{V3}{path}", (204,), V3_WRITE)
        for owner in ("/topics/{topic}/configs", "/brokers/{broker_id}/configs", "/broker-configs")
        for method, path in (
            ("put", f"{owner}/{{name}}"),
            ("delete", f"{owner}/{{name}}"),
            ("post", f"{owner}:alter"),
        )
    ],
    ("post", f"{V3}/acls", (201,), V3_WRITE),
    ("post", f"{V3}/acls:batch", (201,), V3_WRITE),
    ("delete", f"{V3}/acls", (200,), V3_READ),
    ("post", f"{V3}/topics/{{topic}}/records", (200,), V3_WRITE),
    ("post", f"{V3}/topics/{{topic}}/records:batch", (207,), V3_WRITE),
    ("post", f"{V3}/transactions", (200,), (*V3_WRITE, 409, 504)),
    ("get", "/livez", (200,), ()),
    ("get", "/readyz", (200,), (503,)),
    ("get", "/_health", (200,), ()),
]
EMPTY_ANSWERS = {
    ("post", f"{I}/offsets", 200),
    ("post", f"{V3}/acls", 201),
    ("post", f"{V3}/acls:batch", 201),
}
WITH_BODY = {"post", "put", "patch"}


@pytest.fixture(scope="module")
def openapi() -> dict[str, Any]:
    unused = object()  # no request is made
    app = create_app(GatewaySettings(), cast("ClusterAccess", unused), cast("Instances", unused))
    return app.openapi()


def test_all_routes_exist_before_the_first_request() -> None:
    """A router that is included would be replaced by its routes only at the first request for one of them."""
    unused = object()
    app = create_app(GatewaySettings(), cast("ClusterAccess", unused), cast("Instances", unused))
    assert len(app.routes) >= len(ROUTES)
    assert all(isinstance(route, APIRoute) for route in app.routes)


def schema_of(openapi: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """Return the one schema of a response, with its reference resolved."""
    content, *others = response["content"].values()
    assert all(other == content for other in others), "one answer, two shapes"
    schema: dict[str, Any] = content["schema"]
    while "$ref" in schema:
        node: Any = openapi
        for part in schema["$ref"].removeprefix("#/").split("/"):
            node = node[part]
        schema = node
    return schema


@pytest.mark.parametrize(("method", "path", "good", "bad"), ROUTES, ids=lambda v: str(v)[-60:])
def test_a_route_tells_all_its_statuses_with_their_shapes(
    openapi: dict[str, Any], method: str, path: str, good: tuple[int, ...], bad: tuple[int, ...]
) -> None:
    operation = openapi["paths"][path][method]
    responses = operation["responses"]
    assert {int(s) for s in responses if s < "400"} == set(good)
    for status in (*good, *bad):
        response = responses[str(status)]
        if status == 204 or (method, path, status) in EMPTY_ANSWERS:
            assert "content" not in response
            continue
        schema = schema_of(openapi, response)
        assert {"properties", "items", "additionalProperties"} & schema.keys(), (
            f"{status}: {schema}"
        )
        if status >= 400 and path != "/readyz":
            assert set(schema["required"]) >= {"error_code", "message"}
    if method in WITH_BODY:
        for media_type, content in operation["requestBody"]["content"].items():
            assert content["schema"]["type"] == "object", media_type
    assert operation["description"], "the docs page says nothing of it"


def test_no_route_is_beside_the_list(openapi: dict[str, Any]) -> None:
    listed = {(method, path) for method, path, _, _ in ROUTES}
    served = {(m, path) for path, item in openapi["paths"].items() for m in item}
    assert served - listed == {("get", "/metrics")}


@pytest.mark.parametrize(("v2", "v3"), [(True, False), (False, True), (False, False)])
def test_a_version_that_is_switched_off_is_not_there(v2: bool, v3: bool) -> None:
    unused = object()
    settings = GatewaySettings(v2_enable=v2, v3_enable=v3)
    app = create_app(settings, cast("ClusterAccess", unused), cast("Instances", unused))
    paths = app.openapi()["paths"]
    assert any(path.startswith("/consumers") for path in paths) == v2
    assert any(path.startswith("/v3") for path in paths) == v3
    assert "/livez" in paths


def test_operation_names_are_unique(openapi: dict[str, Any]) -> None:
    names = [o["operationId"] for item in openapi["paths"].values() for o in item.values()]
    assert len(names) == len(set(names))


def test_every_reference_has_its_schema(openapi: dict[str, Any]) -> None:
    schemas = openapi["components"]["schemas"]
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(openapi)))
    assert named == schemas.keys()
