"""The gateway's error codes for each route, compared with those in the sources of Confluent's REST
Proxy and of Karapace.

Where both projects agree, the gateway agrees with them; where they differ, it has Confluent's code.
Comments give the reasons for exceptions. Confluent's 404 for a path of another type, 406 and 415
come from JAX-RS.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import httpx
import pytest

from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.integration.gateway.conftest import Gateway

V2: Final = "application/vnd.kafka.v2+json"
JSON: Final = "application/vnd.kafka.json.v2+json"
BINARY: Final = "application/vnd.kafka.binary.v2+json"
BODY_BYTES_MAX: Final = 4_096
I: Final = "/consumers/{group}/instances/{instance}"  # noqa: E741 - as long as a path wants its base
V3: Final = "/v3/clusters/{cluster_id}"
MISSING_TOPIC: Final = (
    "Karapace, Confluent up to 5.5 and its API reference; 40403 since, from Kafka's error"
)
WAITS: Final = (
    "Karapace, and Confluent's API reference; Confluent waits a minute, then 50003 for each record"
)
FAULT: Final = "the client's mistake is no error of the server"


class Row(NamedTuple):
    """A request in a situation, and three error codes (or the HTTP status if there is no code).

    None means that the project reports no error there, has no such route, or that its sources do
    not say.
    """

    route: str
    situation: str
    code: int
    confluent: int | None
    karapace: int | None
    path: str = ""  # the route's, unless given
    body: Any = None
    content_type: str = V2
    accept: str = "*/*"
    why: str = ""

    @property
    def status(self) -> int:
        return self.code if self.code < 1_000 else self.code // 100


RECORD: Final = {"records": [{"value": {"a": 1}}]}
HERE: Final = {"partitions": [{"topic": "codes", "partition": 0}]}
UNASSIGNED: Final = {"partitions": [{"topic": "codes", "partition": 1}]}
SEEK: Final = {"offsets": [{"topic": "codes", "partition": 1, "offset": 0}]}
TOPICS: Final = {"topics": ["codes"]}
FREE, ASSIGNED, SUBSCRIBED = (f"/consumers/g/instances/{name}" for name in ("f", "a", "s"))
NOBODY: Final = "/consumers/g/instances/nobody"


def unacceptable(route: str, path: str, karapace: int | None = 406) -> Row:
    return Row(route, "nothing acceptable", 406, 406, karapace, path, accept="text/html")


def unknown_instance(route: str, body: Any = None) -> Row:
    path = route.split(" ")[1].replace(I, NOBODY)
    return Row(route, "unknown instance", 40403, 40403, 40403, path, body)


def produce(route: str, path: str) -> list[Row]:
    """Return the rows that both produce routes have in common; `path` exists."""
    return [
        Row(route, "no list of records", 422, 422, 422, path, {}, JSON),
        Row(route, "empty list of records", 422, 422, 422, path, {"records": []}, JSON),
        Row(route, "no body", 422, 422, 400, path, b"", JSON),
        Row(route, "not JSON", 400, 400, 400, path, b"{", JSON),
        Row(route, "other media type", 415, 415, 415, path, RECORD, "text/plain"),
        Row(route, "too large", 413, None, 413, path, b" " * (BODY_BYTES_MAX + 1), JSON),
        Row(
            *(route, "not base64", 422, 50002, 42205, path, {"records": [{"value": "?"}]}, BINARY),
            why=FAULT,
        ),
        Row(
            *(route, "Avro, no schema", 415, 42202, 42202, path, RECORD),
            content_type="application/vnd.kafka.avro.v2+json",
            why="formats with schemas need a registry, which there is none of yet",
        ),
    ]


PARTITION: Final = "/topics/{topic}/partitions/{partition}"
ROWS: Final = [
    # A browser, which accepts HTML, is sent to the page.
    Row("GET /", "nothing acceptable", 406, 406, None, "/", accept="image/png"),
    unacceptable("GET /topics", "/topics"),
    unacceptable("GET /brokers", "/brokers"),
    # topics
    unacceptable("GET /topics/{topic}", "/topics/codes"),
    Row("GET /topics/{topic}", "unknown topic", 40403, 40403, 40403, "/topics/none"),
    Row(
        *("GET /topics/{topic}", "impossible name", 40403, 40002, None, "/topics/no%20ne"),
        why="no topic has such a name, so it is as unknown as any other",
    ),
    Row(
        *("GET /topics/{topic}/partitions", "unknown topic", 40401, 40403, 40401),
        path="/topics/none/partitions",
        why=MISSING_TOPIC,
    ),
    Row(
        *(f"GET {PARTITION}", "unknown topic", 40401, 40403, 40401, "/topics/none/partitions/0"),
        why=MISSING_TOPIC,
    ),
    Row(f"GET {PARTITION}", "unknown partition", 40402, 40402, 40402, "/topics/codes/partitions/9"),
    Row(f"GET {PARTITION}", "negative", 40402, 40402, 40402, "/topics/codes/partitions/-1"),
    Row(f"GET {PARTITION}", "not a number", 404, 404, 404, "/topics/codes/partitions/x"),
    Row(f"GET {PARTITION}", "beyond int32", 404, 404, 40402, f"/topics/codes/partitions/{2**31}"),
    Row(
        *(f"GET {PARTITION}/offsets", "unknown topic", 40401, 40403, 40401),
        path="/topics/none/partitions/0/offsets",
        why=MISSING_TOPIC,
    ),
    Row(
        *(f"GET {PARTITION}/offsets", "unknown partition", 40402, 40402, 40402),
        path="/topics/codes/partitions/9/offsets",
    ),
    Row(
        *(f"GET {PARTITION}/offsets", "not a number", 404, 404, 404),
        path="/topics/codes/partitions/x/offsets",
    ),
    # produce
    *produce("POST /topics/{topic}", "/topics/codes"),
    *produce(f"POST {PARTITION}", "/topics/codes/partitions/0"),
    Row(
        *("POST /topics/{topic}", "unknown topic", 40401, 50003, 40401, "/topics/none", RECORD),
        content_type=JSON,
        why=WAITS,
    ),
    Row(
        *(f"POST {PARTITION}", "unknown topic", 40401, 50003, 40401, "/topics/none/partitions/0"),
        body=RECORD,
        content_type=JSON,
        why=WAITS,
    ),
    Row(
        *(f"POST {PARTITION}", "unknown partition", 40402, 50003, 40402),
        *("/topics/codes/partitions/9", RECORD, JSON),
        why=WAITS,
    ),
    Row(
        *(f"POST {PARTITION}", "not a number", 404, 404, 404),
        *("/topics/codes/partitions/x", RECORD, JSON),
    ),
    # consumer instances
    Row("POST /consumers/{group}", "the name is taken", 40902, 40902, 40902, body={"name": "f"}),
    Row(
        *("POST /consumers/{group}", "invalid config", 42204, 42204, 42204),
        body={"auto.offset.reset": "bar"},
    ),
    Row("POST /consumers/{group}", "not JSON", 400, 400, 400, body=b"{"),
    Row(
        *("POST /consumers/{group}", "other media type", 415, 415, 415),
        body={},
        content_type="text/plain",
    ),
    unknown_instance(f"DELETE {I}"),
    # subscription
    unknown_instance(f"POST {I}/subscription", TOPICS),
    unknown_instance(f"GET {I}/subscription"),
    unknown_instance(f"DELETE {I}/subscription"),
    Row(
        *(f"POST {I}/subscription", "assigned already", 40903, 40903, 40903),
        *(f"{ASSIGNED}/subscription", TOPICS),
    ),
    Row(
        *(f"POST {I}/subscription", "topics and pattern", 40903, None, 40903),
        *(f"{FREE}/subscription", {**TOPICS, "topic_pattern": "c.*"}),
    ),
    Row(
        *(f"POST {I}/subscription", "no topics, no pattern", 40903, None, 40903),
        *(f"{FREE}/subscription", {}),
    ),
    Row(
        *(f"POST {I}/subscription", "no list", 422, 400, 422, f"{FREE}/subscription"),
        body={"topics": "codes"},
        why="Karapace; Confluent tells a wrong type from an absent list, by 400",
    ),
    # assignments
    unknown_instance(f"POST {I}/assignments", HERE),
    unknown_instance(f"GET {I}/assignments"),
    Row(
        *(f"POST {I}/assignments", "subscribed already", 40903, 40903, 40903),
        *(f"{SUBSCRIBED}/assignments", HERE),
    ),
    Row(f"POST {I}/assignments", "no list", 422, 500, 50001, f"{FREE}/assignments", {}, why=FAULT),
    Row(f"POST {I}/assignments", "no body", 422, 422, 400, f"{FREE}/assignments", b""),
    # positions
    unknown_instance(f"POST {I}/positions", SEEK),
    unknown_instance(f"POST {I}/positions/beginning", HERE),
    unknown_instance(f"POST {I}/positions/end", HERE),
    Row(
        *(f"POST {I}/positions", "unassigned", 40903, 40903, 40903, f"{ASSIGNED}/positions", SEEK),
    ),
    Row(f"POST {I}/positions", "no list", 422, None, 50001, f"{ASSIGNED}/positions", {}, why=FAULT),
    *(
        Row(
            *(f"POST {I}/positions/{end}", "unassigned", 40903, 40903, 40903),
            *(f"{ASSIGNED}/positions/{end}", UNASSIGNED),
        )
        for end in ("beginning", "end")
    ),
    *(
        Row(
            *(f"POST {I}/positions/{end}", "no list", 422, 500, 50001),
            *(f"{ASSIGNED}/positions/{end}", {}),
            why=FAULT,
        )
        for end in ("beginning", "end")
    ),
    # offsets
    unknown_instance(f"POST {I}/offsets", {"offsets": SEEK["offsets"]}),
    unknown_instance(f"GET {I}/offsets", HERE),
    Row(f"GET {I}/offsets", "no body", 40402, 40402, 400, f"{ASSIGNED}/offsets", b""),
    # records
    unknown_instance(f"GET {I}/records"),
    Row(
        *(f"GET {I}/records", "another format", 40601, 40601, 40601, f"{ASSIGNED}/records"),
        accept=JSON,
    ),
    unacceptable(f"GET {I}/records", f"{ASSIGNED}/records"),
    Row(
        *(f"GET {I}/records", "neither subscribed nor assigned", 40903, 50002, None),
        path=f"{FREE}/records",
        why=FAULT,
    ),
    # v3, which Karapace does not have
    Row(f"GET {V3}/topics", "unknown cluster", 404, 404, None, "/v3/clusters/other/topics"),
    Row(f"GET {V3}/topics/{{topic}}", "unknown topic", 40403, 40403, None, f"{V3}/topics/none"),
    Row(f"DELETE {V3}/topics/{{topic}}", "unknown topic", 40403, 40403, None, f"{V3}/topics/none"),
    Row(
        *(f"POST {V3}/topics", "it exists", 40002, 40002, None),
        body={"topic_name": "codes"},
        content_type="application/json",
    ),
    *(
        Row(
            *(f"GET {V3}/topics/{{topic}}/{what}", "unknown topic", 40403, 40403, None),
            path=f"{V3}/topics/none/{what}",
        )
        for what in ("partitions", "configs")
    ),
    *(
        Row(
            *(f"GET {V3}{PARTITION}", f"partition {partition}", 404, 404, None),
            path=f"{V3}/topics/codes/partitions/{partition}",
        )
        for partition in ("9", "-1", "x")
    ),
    Row(f"GET {V3}/brokers/{{broker_id}}", "unknown broker", 404, 404, None, f"{V3}/brokers/99"),
    Row(
        *(f"POST {V3}/topics/{{topic}}/records", "unknown topic", 40401, 40401, None),
        path=f"{V3}/topics/none/records",
        body={"value": {"type": "JSON", "data": 1}},
        content_type="application/json",
    ),
]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """Yield a gateway with consumer instances: `f` is unused, `a` has one of two partitions assigned, `s` is
    subscribed.
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ODRADEK_GATEWAY_REQUEST_BODY_BYTES_MAX", str(BODY_BYTES_MAX))
        plan = ClusterPlan(
            brokers=1,
            controllers=1,
            gateways=1,
            settings=("auto.create.topics.enable=false",),
        )
        with EmbeddedCluster(plan) as cluster:
            cluster.start()
            cluster.wait_ready()
            with httpx.Client(base_url=cluster.describe()["gateway"], timeout=30) as http:
                made = Gateway(http, cluster)
                made.topic("codes")
                for name in "fas":
                    body = {"name": name, "format": "binary"}
                    assert http.post("/consumers/g", json=body).status_code == 200
                assert http.post(f"{ASSIGNED}/assignments", json=HERE).status_code == 204
                assert http.post(f"{SUBSCRIBED}/subscription", json=TOPICS).status_code == 204
                yield made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.route} - {row.situation}")
def test_an_error_has_the_code_that_clients_know(gateway: Gateway, row: Row) -> None:
    method, route = row.route.split(" ")
    path = (row.path or route).replace("{cluster_id}", gateway.cluster.cluster_id)
    content = row.body if isinstance(row.body, bytes) else json.dumps(row.body).encode()
    response = gateway.http.request(
        method,
        path.replace("{group}", "g"),
        content=None if row.body is None else content,
        headers={"content-type": row.content_type, "accept": row.accept},
    )
    assert (response.status_code, response.json()["error_code"]) == (row.status, row.code)
    assert response.json()["message"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.route} - {row.situation}")
def test_a_code_of_the_table_is_that_of_both_projects_or_says_why_not(row: Row) -> None:
    expected = row.karapace if row.confluent is None else row.confluent
    assert row.code == expected or row.why


def test_every_route_of_v2_has_a_row(gateway: Gateway) -> None:
    described = gateway.http.get("/openapi.json").json()["paths"]
    routes = {
        f"{method.upper()} {path}"
        for path, operations in described.items()
        for method, operation in operations.items()
        if set(operation["tags"]) & {"v2", "v2 consumers"}
    }
    assert routes - {row.route for row in ROWS} == set()
