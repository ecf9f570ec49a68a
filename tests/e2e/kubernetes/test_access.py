"""Network policies are enforced, and pods in other namespaces, without a certificate or without rights are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.kubernetes import kafka_client, policy_rules
from tests.e2e.kubernetes.installation import CLIENTS, Installation, client_pod

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]
ELSEWHERE = "elsewhere"
CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def is_open(target):
    try:
        socket.create_connection(target, timeout=3).close()
        return True
    except OSError:
        return False
with ThreadPoolExecutor(50) as pool:
    print(json.dumps(list(pool.map(is_open, map(tuple, json.loads(sys.argv[1]))))))
"""
WITHOUT_CERTIFICATE = """
import socket, ssl, sys
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
try:
    with context.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)) as tls:
        # Kafka's ApiVersions, version 0, which every client sends first.
        tls.sendall(bytes.fromhex("0000000a00120000000000010000"))
        print("response" if tls.recv(1) else "closed")
except (ssl.SSLError, OSError) as error:
    print("refused", error)
"""


@pytest.fixture(scope="module")
def pods(installation: Installation) -> Iterator[Installation]:
    """Yield an installation with pods that wait for commands: `stranger` in another namespace, `labelled` with the
    client's label, and `client` with the label and a certificate.
    """
    installation.prepare_clients({"odradek-client-tls": "tls"})
    cluster = installation.cluster
    cluster.kubectl("create", "namespace", ELSEWHERE)
    waits = ["sleep", "infinity"]
    for pod in (
        client_pod("stranger", waits, namespace=ELSEWHERE, labels={}, secret=None),
        client_pod("labelled", waits, secret=None),
        client_pod("client", waits),
    ):
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    for space, name in ((ELSEWHERE, "stranger"), (CLIENTS, "labelled"), (CLIENTS, "client")):
        words = ("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
        cluster.kubectl(f"--namespace={space}", *words)
    yield installation
    policy_rules.stop()


def ports_of(installation: Installation) -> dict[str, list[int]]:
    """Return the ports that the containers of each workload open, by the address of a pod."""
    return {
        pod["status"]["podIP"]: [
            port["containerPort"] for one in pod["spec"]["containers"] for port in one["ports"]
        ]
        for pod in installation.cluster.objects("pods")
        if pod["metadata"]["labels"].get("app.kubernetes.io/name") in ("broker", "quorum")
    }


def reached(installation: Installation, space: str, pod: str, ports: Mapping[str, Any]) -> set[int]:
    """Return the ports to which the pod gets a connection at any of the addresses."""
    targets = [(address, port) for address, opened in ports.items() for port in opened]
    words = ("exec", pod, "--", "python", "-c", CONNECT, json.dumps(targets))
    found = json.loads(installation.cluster.kubectl(f"--namespace={space}", *words))
    return {port for (_, port), is_open in zip(targets, found, strict=True) if is_open}


def test_a_pod_reaches_only_what_the_policies_allow(pods: Installation) -> None:
    ports = ports_of(pods)
    assert reached(pods, ELSEWHERE, "stranger", ports) >= {9090, 9092, 9093, 9094, 9095}
    policy_rules.enforce(pods.cluster)
    assert reached(pods, ELSEWHERE, "stranger", ports) == set()
    assert reached(pods, CLIENTS, "labelled", ports) == {9090, 9092}


def test_a_pod_without_a_certificate_gets_no_response(pods: Installation) -> None:
    policy_rules.enforce(pods.cluster)
    for port in ("9090", "9092"):
        command = ("python", "-c", WITHOUT_CERTIFICATE, "bootstrap.odradek.svc", port)
        output = pods.cluster.kubectl(f"--namespace={CLIENTS}", "exec", "labelled", "--", *command)
        assert output.startswith(("refused", "closed")), output


def test_a_client_without_rights_changes_nothing(pods: Installation) -> None:
    """The cluster works with its policies enforced: the client does what it may do, and nothing else."""
    policy_rules.enforce(pods.cluster)
    tls = "/etc/odradek-tls"
    odradek = ["ODRADEK_BOOTSTRAP=bootstrap.odradek.svc:9090", "odradek", "--ca", f"{tls}/ca.crt"]
    odradek += ["--cert", f"{tls}/tls.crt", "--key", f"{tls}/tls.key"]

    def run(*words: str) -> str:
        command = " ".join([*odradek, *words]) + " 2>&1 || true"
        words = ("exec", "client", "--", "sh", "-c", command)
        return pods.cluster.kubectl(f"--namespace={CLIENTS}", *words)

    assert "min.insync.replicas=2" in run("topic", "describe", "hello")
    for forbidden in (("topic", "create", "mine"), ("topic", "delete", "hello", "--yes")):
        assert "ACL" in run(*forbidden), forbidden
    assert "min.insync.replicas=2" in run("topic", "describe", "hello")


def test_a_kafka_client_writes_and_reads_from_inside_the_cluster(pods: Installation) -> None:
    policy_rules.stop()
    kafka_client.start(pods)
    policy_rules.enforce(pods.cluster)
    kafka_client.round_trip(pods, "bootstrap.odradek.svc:9092")
