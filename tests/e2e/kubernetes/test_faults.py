"""Rolling updates and faults on a real Kubernetes whose DNS caches for 30 s, under acks=all load:
no record is lost.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.e2e.kubernetes.conftest import Report
from tests.e2e.kubernetes.installation import CLIENTS, WORKLOADS, Installation, client_pod

PAUSE_S_MAX = 1.0
LOST_NODE_PAUSE_S_MAX = 5.0
QUORUM_ROLL_S_MAX = 30.0
CLIENT_NODE = 1  # CoreDNS runs on this node, too
REST_LOAD = """
import http.client, json, pathlib, ssl, time
from odradek import TlsOptions
from odradek.sync import Client
tls = "/etc/odradek-tls/"
context = ssl.create_default_context(cafile=tls + "ca.crt")
context.load_cert_chain(tls + "tls.crt", tls + "tls.key")
kind = {"Content-Type": "application/vnd.kafka.json.v2+json"}
connection, end, number, gap_s, failed = None, pathlib.Path("/tmp/end"), 0, 0.0, 0
run, last_s, steps, longest = time.time_ns(), time.monotonic(), [], []
def step(name):
    steps.append(f"{name} {time.monotonic() - last_s:.3f}")
while not end.exists():
    try:
        if connection is None:
            connection = http.client.HTTPSConnection("gateway.odradek.svc", 8082, context=context, timeout=5)
            connection.connect()
            step("connected")
        step("request")
        connection.request("POST", "/topics/hello", json.dumps({"records": [{"value": [run, number]}]}), kind)
        response = connection.getresponse()
        result = json.loads(response.read())
        assert response.status == 200 and "offset" in result["offsets"][0], result
    except (OSError, http.client.HTTPException, AssertionError, KeyError, ValueError) as error:
        step(repr(error))
        failed += 1
        connection = None
        continue
    now_s = time.monotonic()
    if now_s - last_s > gap_s:
        step("response")
        gap_s, longest = now_s - last_s, steps
    last_s, number, steps = now_s, number + 1, []
    time.sleep(0.01)
options = TlsOptions(ca=tls + "ca.crt", cert=tls + "tls.crt", key=tls + "tls.key")
with Client("bootstrap.odradek.svc:9090", tls=options) as client, client.consumer() as consumer:
    places, seen, read = [("hello", partition) for partition in range(3)], set(), 0
    consumer.assign(places)
    consumer.seek_to_beginning()
    total = sum(consumer.end_offsets(places).values())
    while read < total:
        records = consumer.getmany(timeout_ms=30_000)
        assert records, f"{read} of {total} records came"
        read += len(records)
        seen.update(record.value.replace(b" ", b"") for record in records)
lost = sum(json.dumps([run, one], separators=(",", ":")).encode() not in seen for one in range(number))
figures = {"acknowledged": number, "longest_gap_s": round(gap_s, 3), "steps": longest, "retried": failed}
print(json.dumps({**figures, "lost": lost}))
"""
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]


def test_brokers_run_the_compiled_modules(installation: Installation) -> None:
    for pod in ("broker-1", "broker-2", "broker-3"):
        (serving,) = installation.logged(pod, "Serving")
        assert serving["is_compiled"] is True, serving


@pytest.mark.parametrize("workload", WORKLOADS)
def test_two_rolling_updates_pause_briefly(
    installation: Installation, report: Report, workload: str
) -> None:
    with installation.load(node=CLIENT_NODE) as load:
        load.gap_s()
        rounds = [(installation.roll(workload), load.gap_s()) for _ in range(2)]
    rolls_s, pauses_s = [took_s for took_s, _ in rounds], [pause_s for _, pause_s in rounds]
    report(workload=workload, pauses_s=pauses_s, bar_s=PAUSE_S_MAX, rolls_s=rolls_s)
    assert max(pauses_s) <= PAUSE_S_MAX
    if workload == "statefulset/quorum":
        assert max(rolls_s) <= QUORUM_ROLL_S_MAX


def test_a_killed_process_pauses_briefly(installation: Installation, report: Report) -> None:
    with installation.load(node=CLIENT_NODE) as load:
        load.gap_s()
        pauses_s = {}
        for pod in ("broker-2", f"quorum-{installation.active_controller()}"):
            installation.kill(pod)
            installation.wait_ready(pod)
            pauses_s[pod] = load.gap_s()
    report(pauses_s=pauses_s, bar_s=PAUSE_S_MAX)
    assert max(pauses_s.values()) <= PAUSE_S_MAX


def test_a_pod_deleted_by_force_pauses_briefly(installation: Installation, report: Report) -> None:
    with installation.load(node=CLIENT_NODE) as load:
        load.gap_s()
        installation.kubectl("delete", "pod", "broker-1", "--grace-period=0", "--force")
        installation.wait_rolled("statefulset/broker")
        pause_s = load.gap_s()
    report(pause_s=pause_s, bar_s=PAUSE_S_MAX)
    assert pause_s <= PAUSE_S_MAX


def test_a_drained_node_pauses_briefly(installation: Installation, report: Report) -> None:
    node = next(n for n in (2, 3) if n == installation.node_of("broker-3") or n == 3)
    drain = ("drain", f"node-{node}", "--delete-emptydir-data", "--force", "--timeout=180s")
    with installation.load(node=CLIENT_NODE) as load:
        load.gap_s()
        installation.cluster.kubectl(*drain)
        drained_s = load.gap_s()
        installation.cluster.kubectl("uncordon", f"node-{node}")
        for workload in WORKLOADS:
            installation.wait_rolled(workload)
        back_s = load.gap_s()
    report(pause_s=drained_s, back_pause_s=back_s, bar_s=PAUSE_S_MAX)
    assert max(drained_s, back_s) <= PAUSE_S_MAX


def test_a_lost_node_pauses_for_seconds(installation: Installation, report: Report) -> None:
    """The node is silent: its connections neither end nor carry data."""
    node = next(n for n in (3, 2) if n in {installation.node_of(f"broker-{i}") for i in (1, 2, 3)})
    with installation.load(node=CLIENT_NODE) as load:
        load.gap_s()
        with installation.cluster.lost_node(node):
            lost_s = load.gap_s()
        for workload in WORKLOADS:
            installation.wait_rolled(workload)
        back_s = load.gap_s()
    report(pause_s=lost_s, bar_s=LOST_NODE_PAUSE_S_MAX, back_pause_s=back_s)
    assert lost_s <= LOST_NODE_PAUSE_S_MAX
    assert back_s <= PAUSE_S_MAX


def test_rest_clients_notice_little_of_rolling_gateways(
    installation: Installation, report: Report
) -> None:
    """A client with one connection to the service of the gateways repeats a request that failed, at once."""
    installation.prepare_clients({"odradek-client-tls": "client-tls"})
    cluster, space = installation.cluster, f"--namespace={CLIENTS}"
    pod = client_pod("rest", ["sleep", "infinity"], node=CLIENT_NODE, secret="client-tls")
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    cluster.kubectl(space, "wait", "--for=condition=Ready", "pod/rest", "--timeout=120s")
    command = cluster.command(space, "exec", "rest", "--", "python", "-c", REST_LOAD)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        rolls_s = [installation.roll("deployment/gateway") for _ in range(2)]
        cluster.kubectl(space, "exec", "rest", "--", "touch", "/tmp/end")
        assert load.stdout is not None
        result = json.loads(load.stdout.read())
    report(rolls_s=rolls_s, bar_s=PAUSE_S_MAX, **result)
    assert result["acknowledged"] > 0
    assert result["lost"] == 0
    assert result["longest_gap_s"] <= PAUSE_S_MAX
