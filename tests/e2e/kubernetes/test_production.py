"""The prod overlay runs on three nodes in three zones, and Kafka clients outside use the brokers' external names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.cli.certificate_authority import CertificateAuthority
from tests.e2e.kubernetes import kafka_client, programs
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.installation import (
    CLIENTS,
    WORKLOADS,
    Installation,
    client_pod,
    host_aliases,
)
from tests.unit.kubernetes.rendered import K8S

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]
DOMAIN = "odradek.example.com"  # as in components/external-access
EXTERNAL = {f"broker-{number}": f"10.96.200.{number}" for number in (1, 2, 3)}
NAMES = {f"{broker}.{DOMAIN}": address for broker, address in EXTERNAL.items()}


def overlay(folder: Path) -> Path:
    """Write an overlay of the prod overlay for nodes with two processors. The addresses of the external services are
    fixed, and pods get them from files, because no DNS server here has the names.
    """
    cpu = "/spec/template/spec/containers/0/resources/requests/cpu"
    aliases = {
        "op": "add",
        "path": "/spec/template/spec/hostAliases",
        "value": host_aliases(NAMES),
    }
    patches: list[tuple[str, str, Any]] = [
        ("StatefulSet", "broker|quorum", {"op": "replace", "path": cpu, "value": "100m"}),
        ("Deployment", "gateway", {"op": "replace", "path": cpu, "value": "50m"}),
        ("Deployment", "gateway", aliases),
        ("Job", "apply-topics", aliases),
    ]
    for broker, address in EXTERNAL.items():
        own = {"op": "add", "path": "/spec/clusterIP", "value": address}
        patches.append(("Service", f"{broker}-external", own))
    kustomization = {
        "resources": [os.path.relpath(K8S / "overlays" / "prod", folder.resolve())],
        "patches": [
            {"target": {"kind": kind, "name": name}, "patch": json.dumps([patch])}
            for kind, name, patch in patches
        ],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return folder


def secrets(folder: Path) -> list[dict[str, Any]]:
    """Return the secrets that deploy/k8s/README.md says production needs, with the names that it lists."""
    authority = CertificateAuthority(folder)
    authority.create(common_name="production", days=30)
    names: dict[str, tuple[str, list[str]]] = {}
    for number in (1, 2, 3):
        hosts = [f"broker-{number}.odradek.svc", "bootstrap", "bootstrap.odradek.svc"]
        hosts.append(f"broker-{number}.{DOMAIN}")
        names[f"quorum-{number}"] = (f"controller-{number}", [])
        names[f"broker-{number}"] = (f"broker-{number}", hosts)
    names |= {name: (name, []) for name in ("gateway", "admin", "prometheus", "client")}
    items = []
    for name, (identity, hosts) in names.items():
        certificate, key = authority.issue(identity, hosts=hosts, days=30)
        files = {"tls.crt": certificate, "tls.key": key, "ca.crt": folder / "ca.crt"}
        data = {file: path.read_text() for file, path in files.items()}
        metadata = {"name": f"odradek-{name}-tls", "namespace": "odradek"}
        items.append(
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}
        )
    return items


@pytest.fixture(scope="module")
def production(
    built_programs: Path, image: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("kubernetes")
    with Cluster(folder, built_programs, [image]) as cluster:
        installation = Installation(cluster)
        cluster.kubectl("apply", "-f", str(K8S / "base" / "namespace.yaml"))
        for definition in programs.operator_definitions():
            cluster.kubectl("apply", "--server-side", "-f", str(definition))
        items = secrets(tmp_path_factory.mktemp("certificates"))
        given = {"apiVersion": "v1", "kind": "List", "items": items}
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(given))
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        installation.apply(str(overlay(tmp_path_factory.mktemp("overlay"))))
        for workload in WORKLOADS:
            installation.wait_rolled(workload)
        installation.kubectl(
            "wait", "--for=condition=Complete", "job/apply-topics", "--timeout=300s"
        )
        yield installation


def test_each_pod_of_a_set_is_in_a_zone_of_its_own_which_is_the_rack_of_a_broker(
    production: Installation,
) -> None:
    for name in ("broker", "quorum"):
        nodes = {number: production.node_of(f"{name}-{number}") for number in (1, 2, 3)}
        assert sorted(nodes.values()) == [1, 2, 3]
        if name == "broker":
            racks = {number: f"zone-{node}" for number, node in nodes.items()}
    cluster, space = production.cluster, f"--namespace={CLIENTS}"
    production.prepare_clients({"odradek-admin-tls": "tls"})
    pod = client_pod("admin", ["sleep", "infinity"], hosts=NAMES)
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    cluster.kubectl(space, "wait", "--for=condition=Ready", "pod/admin", "--timeout=120s")
    tls = "/etc/odradek-tls"
    command = ["odradek", "--ca", f"{tls}/ca.crt", "--cert", f"{tls}/tls.crt"]
    command += ["--key", f"{tls}/tls.key", "cluster", "info", "--output", "json"]
    bootstrap = "ODRADEK_BOOTSTRAP=bootstrap.odradek.svc:9090"
    facts = json.loads(cluster.kubectl(space, "exec", "admin", "--", "env", bootstrap, *command))
    assert {broker["broker"]: broker["rack"] for broker in facts["brokers"]} == racks
    assert production.restarts() == {}


def test_a_kafka_client_writes_and_reads_through_the_external_addresses(
    production: Installation,
) -> None:
    kafka_client.start(production, hosts=NAMES)
    kafka_client.round_trip(production, f"broker-1.{DOMAIN}:9092")
