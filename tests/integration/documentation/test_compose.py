"""deploy/compose.yaml agrees with the schema of Compose, and every process in it starts with its
settings, names and volumes.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from odradek_broker.settings import ENV_PREFIX as BROKER_PREFIX
from odradek_broker.settings import BrokerSettings
from odradek_gateway.settings import ENV_PREFIX as GATEWAY_PREFIX
from odradek_gateway.settings import GatewaySettings
from odradek_metadata_quorum.settings import ENV_PREFIX as QUORUM_PREFIX
from odradek_metadata_quorum.settings import QuorumProcessSettings
from odradek_runtime.settings import load_settings
from tests.integration.documentation.machines import Machine, Machines
from tests.tools import need

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "deploy" / "compose.yaml"
SCHEMA = Path(__file__).parent / "compose-spec.json"  # of github.com/compose-spec, Apache-2.0
OF_PROCESS: dict[str, tuple[type[Any], str]] = {
    "quorum": (QuorumProcessSettings, QUORUM_PREFIX),
    "broker": (BrokerSettings, BROKER_PREFIX),
    "gateway": (GatewaySettings, GATEWAY_PREFIX),
}


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


def processes() -> dict[str, dict[str, Any]]:
    """Return the services that are processes of a cluster, by name."""
    return {
        name: service
        for name, service in document()["services"].items()
        if service["command"][0] in OF_PROCESS
    }


def test_it_has_the_form_that_compose_reads() -> None:
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document())


def test_it_builds_the_image_of_the_repository() -> None:
    for name, service in document()["services"].items():
        build = service["build"]
        assert (COMPOSE.parent / build["context"] / build["dockerfile"]).is_file(), name


@pytest.mark.parametrize("name", processes())
def test_a_process_takes_its_settings(name: str) -> None:
    service = processes()[name]
    settings, prefix = OF_PROCESS[service["command"][0]]
    loaded = load_settings(settings, env=service["environment"], env_prefix=prefix)
    if name.startswith("controller"):
        loaded.check()


def test_every_volume_is_given_to_the_user_of_the_image() -> None:
    services = document()["services"]
    owners = services["owners"]
    prepared = dict(volume.split(":") for volume in owners["volumes"])
    assert set(prepared) == set(document()["volumes"])
    assert sorted(owners["command"]) == sorted(prepared.values())
    containerfile = (ROOT / "deploy/k8s/Containerfile").read_text()
    assert f"USER {owners['entrypoint'][1]}" in containerfile


def test_clients_of_the_host_find_each_broker_where_its_port_is_published() -> None:
    for name, service in processes().items():
        if not name.startswith("broker"):
            continue
        published = set()
        for port in service["ports"]:
            address, outside, inside = port.split(":")
            assert (address, outside) == ("127.0.0.1", inside)
            published.add(int(inside))
        environment = service["environment"]
        for listeners, host in (("LISTENERS", "0.0.0.0"), ("ADVERTISED_LISTENERS", "127.0.0.1")):
            text = environment[f"ODRADEK_BROKER_{listeners}"]
            ports = re.findall(rf"_HOST://{re.escape(host)}:(\d+)", text)
            assert set(map(int, ports)) == published, name


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Machines]:
    """Yield a machine for each service, with its host name, on which the service runs as the file
    says.
    """
    need("network namespaces")
    services = processes()
    hosts = [service["hostname"] for service in services.values()]
    with Machines(tmp_path / "machines", hosts) as machines:
        for service in services.values():
            _start(machines[service["hostname"]], service)
        yield machines


def _start(machine: Machine, service: dict[str, Any]) -> None:
    user = document()["services"]["owners"]["entrypoint"][1].split(":")[0]
    for volume in service.get("volumes", ()):
        machine.run(f"install -d -o {user} -g {user} {volume.partition(':')[2]}")
    settings = " ".join(f"{name}='{value}'" for name, value in service["environment"].items())
    command = " ".join(service["command"])
    machine.begin(f"exec env {settings} odradek {command} > /dev/null 2>&1", user=user)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_its_processes_become_healthy_and_take_a_record(containers: Machines) -> None:
    services = processes()
    for service in services.values():
        _, *words = service["healthcheck"]["test"]
        machine = containers[service["hostname"]]
        machine.run(f"until {shlex.join(words)} 2>/dev/null; do sleep 0.5; done")
    client = containers["gateway"]
    bootstrap = services["gateway"]["environment"]["ODRADEK_GATEWAY_BOOTSTRAP"]
    client.run(f"echo hello | odradek --bootstrap {bootstrap} produce --create greetings")
    produced = client.run(
        "curl -fsS http://gateway:8082/topics/greetings"
        " -H 'Content-Type: application/vnd.kafka.json.v2+json' -d '{\"records\": [{\"value\": 1}]}'"
    )
    assert '"offset"' in produced
    # The replication factor is that of the controllers' settings.
    described = client.run(
        f"odradek --bootstrap {bootstrap} partition list --topic greetings -o json"
    )
    assert {tuple(sorted(row["replicas"])) for row in json.loads(described)} == {(1, 2, 3)}
