"""The gateway accepts requests as clients of Confluent's REST Proxy and of Karapace send them: one
media type for all routes, slashes at the end.
"""

from __future__ import annotations

import httpx
import pytest

from odradek_gateway.rest.media_types import NO_RECORDS, PLAIN, V2
from tests.integration.gateway.conftest import Gateway

JSON = {"content-type": "application/vnd.kafka.json.v2+json"}


@pytest.fixture(scope="module")
def topic(gateway: Gateway) -> str:
    name = gateway.topic("clients", partitions=1)
    records = {"records": [{"value": {"n": 1}}]}
    assert gateway.http.post(f"/topics/{name}", json=records, headers=JSON).status_code == 200
    return name


@pytest.mark.parametrize("name", NO_RECORDS)
@pytest.mark.parametrize("slash", ["", "/"])
def test_one_set_of_headers_serves_the_life_of_an_instance(
    gateway: Gateway, topic: str, name: str, slash: str
) -> None:
    """Every media type is sent to every route; records are returned in the instance's own
    format.
    """
    reads = {"accept": "application/vnd.kafka.json.v2+json"}

    def ask(method: str, path: str, body: object = None) -> httpx.Response:
        headers = {"content-type": name, "accept": name}
        response = gateway.http.request(method, f"{path}{slash}", json=body, headers=headers)
        assert response.is_success, (method, path, name, response.text)
        if response.content:
            expected = PLAIN if name == PLAIN else V2
            assert response.headers["content-type"] == expected
        return response

    partitions = {"partitions": [{"topic": topic, "partition": 0}]}
    offsets = {"offsets": [{"topic": topic, "partition": 0, "offset": 0}]}
    made = ask("POST", "/consumers/clients", {"format": "json"}).json()
    base = f"/consumers/clients/instances/{made['instance_id']}"
    assert made["base_uri"].endswith(base)
    ask("POST", f"{base}/subscription", {"topics": [topic]})
    assert ask("GET", f"{base}/subscription").json() == {"topics": [topic]}
    ask("DELETE", f"{base}/subscription")
    ask("POST", f"{base}/assignments", partitions)
    assert ask("GET", f"{base}/assignments").json() == partitions
    ask("POST", f"{base}/positions", offsets)
    ask("POST", f"{base}/positions/end", partitions)
    ask("POST", f"{base}/positions/beginning", partitions)
    ask("POST", f"{base}/offsets", offsets)
    assert ask("GET", f"{base}/offsets", partitions).json()["offsets"][0]["offset"] == 1
    records = gateway.http.get(f"{base}/records{slash}", params={"timeout": 20_000}, headers=reads)
    assert [record["value"] for record in records.json()] == [{"n": 1}]
    ask("DELETE", base)
    assert topic in ask("GET", "/topics").json()
    assert ask("GET", f"/topics/{topic}").json()["name"] == topic
    ask("GET", f"/topics/{topic}/partitions/0/offsets")
    ask("GET", f"/topics/{topic}/partitions/0")
    ask("GET", f"/topics/{topic}/partitions")
    ask("GET", "/brokers")


def test_a_trailing_slash_is_nothing_in_v3_and_when_records_are_produced(
    gateway: Gateway, topic: str
) -> None:
    for path in (gateway.v3, f"{gateway.v3}/topics/{topic}", "/v3/clusters", "/livez"):
        plain, slashed = gateway.http.get(path), gateway.http.get(f"{path}/")
        assert (plain.status_code, slashed.status_code) == (200, 200), path
        assert plain.json() == slashed.json()
    body = {"records": [{"value": {"n": 2}}]}
    other = gateway.topic("clients-slash", partitions=1)
    assert gateway.http.post(f"/topics/{other}/", json=body, headers=JSON).status_code == 200
    wrong = gateway.http.put("/topics/", json=body)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET")
    assert gateway.http.get("/topics//").status_code == 404


@pytest.mark.parametrize("path", ["", "/instances/i/subscription", "/instances/i/positions"])
@pytest.mark.parametrize("name", [None, "text/plain", "application/vnd.kafka.json.v3+json"])
def test_a_body_of_another_type_or_of_none_is_415(
    gateway: Gateway, path: str, name: str | None
) -> None:
    headers = {} if name is None else {"content-type": name}
    response = gateway.http.post(f"/consumers/g{path}", content=b"{}", headers=headers)
    assert (response.status_code, response.json()["error_code"]) == (415, 415)
