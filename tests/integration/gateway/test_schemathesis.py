"""Runs all checks of schemathesis against a real gateway: its responses agree with openapi.json, whatever
is sent.

The checks run twice: with any names, and with names that exist, so that requests get further than
404. Valid requests may be refused with 400 or 422 only if a schema cannot express the reason; these
operations are listed here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.integration.gateway.conftest import Gateway

HERE = Path(__file__).parent
SEED = 20_260_401
LONG_EXAMPLES = (
    "20"  # of each operation, beside some 4,000 cases of the coverage phase: minutes, not more
)
GROUP, INSTANCE = "st-group", "st-instance"
V3 = "/v3/clusters/{cluster_id}"
MAY_REFUSE = {  # what is valid by its schema and still cannot be
    f"POST {V3}/topics": "more replicas than brokers, unknown configs, gaps in assignments",
    f"PATCH {V3}/topics/{{topic}}": "fewer partitions than there are",
    f"POST {V3}/acls": "the cluster has one name",
    f"POST {V3}/acls:batch": "the cluster has one name",
    f"POST {V3}/broker-configs:alter": "a value that is not the config's",
    f"PUT {V3}/broker-configs/{{name}}": "a value that is not the config's",
    f"DELETE {V3}/broker-configs/{{name}}": "a config that is read-only",
    f"POST {V3}/brokers/{{broker_id}}/configs:alter": "a value that is not the config's",
    f"PUT {V3}/brokers/{{broker_id}}/configs/{{name}}": "a value that is not the config's",
    f"DELETE {V3}/brokers/{{broker_id}}/configs/{{name}}": "a config that is read-only",
    f"POST {V3}/topics/{{topic}}/configs:alter": "a value that is not the config's",
    f"PUT {V3}/topics/{{topic}}/configs/{{name}}": "a value that is not the config's",
    f"POST {V3}/topics/{{topic}}/records": "data that is not of its own `type`; times before 1970",
    f"POST {V3}/topics/{{topic}}/records:batch": "one id twice",
    f"POST {V3}/transactions": "as records; topics that cannot exist",
    "POST /consumers/{group}/instances/{instance}/subscription": "topics and pattern; no RE2 pattern",
    "POST /consumers/{group}/instances/{instance}/positions": "neither offsets nor timestamps",
}
TELLS_FAILURES_INSIDE = (
    f"POST {V3}/topics/{{topic}}/records:batch"  # 207 for entries that are wrong
)


def settings(cluster_id: str, pinned: dict[str, str]) -> str:
    """Return the settings of schemathesis."""
    text = 'hooks = "tests.integration.gateway.schemathesis_hooks"\n[parameters]\n'
    for name, value in {"path.cluster_id": cluster_id, **pinned}.items():
        text += f"{json.dumps(name)} = {json.dumps(value)}\n"
    for operation in MAY_REFUSE:
        expected = [200, 201, 204, 207, 400, 401, 403, 404, 409, 422, 429]
        text += f"[[operations]]\ninclude-name = {json.dumps(operation)}\n"
        text += f"checks.positive_data_acceptance.expected-statuses = {expected}\n"
        if operation == TELLS_FAILURES_INSIDE:
            refused = [207, 400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 429]
            text += f"checks.negative_data_rejection.expected-statuses = {refused}\n"
    return text


def run(gateway: Gateway, folder: Path, pinned: dict[str, str], *arguments: str) -> None:
    (folder / "schemathesis.toml").write_text(settings(gateway.cluster.cluster_id, pinned))
    command = [
        *(sys.executable, "-m", "schemathesis.cli"),
        *("--config-file", str(folder / "schemathesis.toml")),
        *("run", f"{gateway.http.base_url}/openapi.json"),
        *("--checks", "all", "--no-color", "--warnings", "off", "--seed", str(SEED)),
        *("--suppress-health-check", "all", "--generation-database", "none"),
        *arguments,
    ]
    told = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout[-20_000:] + told.stderr[-2_000:]
    assert "Tested: 7" in told.stdout, told.stdout[
        -2_000:
    ]  # of more than 70 operations, none was left out


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """Yield a gateway whose requests never wait long for records, because any number is a valid
    `timeout`.
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ODRADEK_GATEWAY_CONSUMER_REQUEST_TIMEOUT_MS_MAX", "20")
        with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, gateways=1)) as cluster:
            cluster.start()
            cluster.wait_ready()
            with httpx.Client(base_url=cluster.describe()["gateway"], timeout=30) as http:
                yield Gateway(http, cluster)


@pytest.fixture(scope="module")
def existing(gateway: Gateway) -> dict[str, str]:
    """Create resources, and return their names."""
    topic = gateway.topic("st-topic")
    v2 = {"content-type": "application/vnd.kafka.v2+json"}
    made = gateway.http.post(f"/consumers/{GROUP}", json={"name": INSTANCE}, headers=v2)
    assert made.status_code == 200, made.text
    partition = {"partitions": [{"topic": topic, "partition": 0}]}
    base = f"/consumers/{GROUP}/instances/{INSTANCE}"
    assert gateway.http.post(f"{base}/assignments", json=partition, headers=v2).status_code == 204
    offsets = {"offsets": [{"topic": topic, "partition": 0, "offset": 0}]}
    assert gateway.http.post(f"{base}/offsets", json=offsets, headers=v2).status_code == 200
    return {
        "path.topic": topic,
        "path.partition": "0",
        "path.broker_id": "1",
        "path.group": GROUP,
        "path.instance": INSTANCE,
    }


BRIEFLY = {
    "any": ("--phases", "fuzzing,stateful", "--max-examples", "2"),
    "existing": ("--phases", "coverage,stateful", "--mode", "positive", "--max-examples", "2"),
}
AT_LENGTH = {  # wrong path parameters of the coverage phase would give way to existing names, which are right
    "any": ("--max-examples", LONG_EXAMPLES),
    "existing": ("--phases", "fuzzing,stateful", "--max-examples", LONG_EXAMPLES),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("names", ["any", "existing"])
def test_the_gateway_does_what_openapi_says(
    gateway: Gateway, existing: dict[str, str], tmp_path: Path, names: str
) -> None:
    run(gateway, tmp_path, existing if names == "existing" else {}, *BRIEFLY[names])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("names", ["any", "existing"])
def test_the_gateway_does_what_openapi_says_at_length(
    gateway: Gateway, existing: dict[str, str], tmp_path: Path, names: str
) -> None:
    run(gateway, tmp_path, existing if names == "existing" else {}, *AT_LENGTH[names])
