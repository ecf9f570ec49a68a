"""The pods of the dev overlay are restarted, moved and lose their volumes, under acks=all load.

`make test` restarts everything once and reports the pauses; `make test-long` compares them with the
limit, and runs the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from odradek.cli.certificate_authority import CertificateAuthority
from odradek_runtime.tls import first_end_s
from tests.integration.deployment.conftest import load_on
from tests.integration.deployment.simulated_kubernetes import SimulatedKubernetes
from tests.tools import need
from tests.unit.kubernetes.network_rules import EGRESS, INGRESS

BAR_S = 1.0  # of one roll
GAP_S_MAX = 15.0  # what no machine is slow enough for
SPARK_S_MAX = 300.0
PORTS = {
    9095: "raft",
    9094: "controller",
    9093: "replication",
    9090: "grpc",
    9092: "kafka",
    8082: "http",
}
Report = Callable[..., None]


def roll_everything(cluster: SimulatedKubernetes) -> dict[str, float]:
    """Restart each pod; return for each the longest pause of a partition in seconds.

    No record may be lost meanwhile.
    """
    gaps_s: dict[str, float] = {}
    with load_on(cluster) as load:

        def note(pod: str) -> None:
            gaps_s[pod] = load.gap_s()

        load.gap_s()
        cluster.roll_stateful_set("quorum", after_each=note)
        cluster.roll_stateful_set("broker", after_each=note)
    return gaps_s


def metric(cluster: SimulatedKubernetes, pod: str, name: str) -> float:
    """Return the value of one metric from the pod's own scrape."""
    address = cluster.pods[pod].address
    body = httpx.get(f"http://{address}:9404/metrics", timeout=10).text
    return next(
        float(line.split()[-1]) for line in body.splitlines() if line.startswith(name + " ")
    )


@pytest.mark.timeout(300)
def test_a_rolling_update_of_brokers_and_controllers_loses_no_record(
    cluster: SimulatedKubernetes, report: Report
) -> None:
    before = {name: pod.address for name, pod in cluster.pods.items()}
    gaps_s = roll_everything(cluster)
    report(gaps_s=gaps_s, bar_s=BAR_S)
    assert gaps_s.keys() == {f"{name}-{n}" for name in ("broker", "quorum") for n in (1, 2, 3)}
    assert max(gaps_s.values()) < GAP_S_MAX
    assert all(cluster.pods[name].address != before[name] for name in gaps_s), "pods moved"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_three_rolling_updates_keep_each_pause_within_the_bar(
    cluster: SimulatedKubernetes, report: Report
) -> None:
    rounds = [roll_everything(cluster) for _ in range(3)]
    worst = {pod: max(gaps[pod] for gaps in rounds) for pod in rounds[0]}
    report(worst_gaps_s=worst, bar_s=BAR_S)
    assert max(worst.values()) <= BAR_S


@pytest.mark.timeout(300)
def test_a_broker_whose_volume_is_gone_replicates_again(cluster: SimulatedKubernetes) -> None:
    with load_on(cluster) as load:
        cluster.kill("broker-2")
        cluster.lose_claims("broker-2")
        cluster.start("broker-2")
        cluster.wait_ready("broker-2")  # that is: all its replicas are in sync again
        assert load.gap_s() < GAP_S_MAX
        cluster.stop("broker-3")  # from here on its copy is what acks=all counts on
        assert load.gap_s() < GAP_S_MAX
        cluster.start("broker-3")
        cluster.wait_ready("broker-3")


@pytest.mark.timeout(300)
def test_a_controller_whose_volume_is_gone_does_not_vote_before_it_has_caught_up(
    cluster: SimulatedKubernetes,
) -> None:
    """Two of three controllers respond, and one of them is empty: if it voted, these two would
    elect a leader.
    """
    role = "odradek_metadata_quorum_raft_leader"
    cluster.kill("quorum-2")
    cluster.kill("quorum-3")
    cluster.lose_claims("quorum-2")
    cluster.start("quorum-2")
    empty = cluster.pods["quorum-2"]
    cluster.wait_until(
        lambda: "Waiting for a response of every other voter before voting" in empty.log_tail(100),
        "quorum-2 says, seconds after it started, that it waits",
    )
    assert metric(cluster, "quorum-1", role) == metric(cluster, "quorum-2", role) == 0
    assert metric(cluster, "quorum-2", "odradek_metadata_quorum_applied_offset") <= 1
    assert not cluster.is_ready("quorum-2")
    assert cluster.is_live("quorum-2"), "a restart would not help it"

    cluster.start("quorum-3")
    for pod in ("quorum-1", "quorum-2", "quorum-3"):
        cluster.wait_ready(pod)
    cluster.kill("quorum-1")  # now its vote and its log are needed
    cluster.wait_until(
        lambda: metric(cluster, "quorum-2", role) + metric(cluster, "quorum-3", role) == 1,
        "quorum-2 and quorum-3 have a leader",
    )
    cluster.start("quorum-1")
    cluster.wait_ready("quorum-1")


def _kept_logs(cluster: SimulatedKubernetes) -> set[str]:
    """Return the directories of partitions on the brokers' volumes."""
    logs = cluster.scratch.glob("volumes/*-broker-*/**/*.log")
    return {str(log.parent.relative_to(cluster.scratch)) for log in logs}


@pytest.mark.timeout(300)
def test_brokers_refuse_controllers_that_lost_all_their_volumes_until_those_are_restored(
    cluster: SimulatedKubernetes,
) -> None:
    """Empty controllers format themselves (`storage.format.if.empty`) and begin a log without
    topics.
    """
    controllers, brokers = cluster.pod_names("quorum"), cluster.pod_names("broker")
    before = _kept_logs(cluster)
    assert before
    for pod in controllers:
        cluster.kill(pod)
        cluster.put_claims_aside(pod)
    for pod in controllers:
        cluster.start(pod)
    for pod in controllers:
        cluster.wait_ready(pod)
    for pod in brokers:
        cluster.wait_until(
            lambda pod=pod: "Restore their data directories" in cluster.pods[pod].log_tail(200),  # type: ignore[misc]
            f"{pod} says what happened and what to do",
        )
        cluster.wait_until(lambda pod=pod: not cluster.is_ready(pod), f"{pod} is not ready")  # type: ignore[misc]
        assert cluster.is_live(pod), "a restart would not help it"
    assert _kept_logs(cluster) == before
    for pod in controllers:
        cluster.kill(pod)
        cluster.restore_claims(pod)
    for pod in controllers:
        cluster.start(pod)
    for pod in (*controllers, *brokers):
        cluster.wait_ready(pod)
    assert _kept_logs(cluster) >= before
    with load_on(cluster) as load:
        assert load.gap_s() < GAP_S_MAX


@pytest.mark.timeout(300)
def test_gateways_answer_while_they_are_rolled_and_reach_each_other(
    cluster: SimulatedKubernetes,
) -> None:
    """Every gateway serves a consumer instance that was created at one of them, before and after a
    rolling restart.
    """
    json_v2 = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    v2 = {"Content-Type": "application/vnd.kafka.v2+json"}

    def url(index: int) -> str:
        return f"https://{cluster.pods_of('gateway')[index].address}:8082"

    with httpx.Client(timeout=30, verify=cluster.client_tls()) as client:
        made = client.post(
            f"{url(0)}/v3/clusters/odradek/topics", json={"topic_name": "hello-by-rest"}
        )
        assert made.status_code == 201, made.text
        assert made.json()["replication_factor"] == made.json()["partitions_count"] == 3
        topic = client.get(f"{url(0)}/topics/hello-by-rest").json()
        assert topic["configs"]["min.insync.replicas"] == "2"
        body = {"records": [{"value": number} for number in range(10)]}
        sent = client.post(f"{url(0)}/topics/hello-by-rest", json=body, headers=json_v2)
        assert sent.status_code == 200, sent.text
        assert all(one["error_code"] is None for one in sent.json()["offsets"]), sent.text
        wish = {"name": "one", "format": "json", "auto.offset.reset": "earliest"}
        assert client.post(f"{url(0)}/consumers/verify-g", json=wish, headers=v2).status_code == 200
        instance = "/consumers/verify-g/instances/one"
        subscribed = client.post(
            f"{url(1)}{instance}/subscription", json={"topics": ["hello-by-rest"]}, headers=v2
        )
        assert subscribed.status_code == 204, subscribed.text
        seen: list[int] = []

        def read(index: int) -> None:
            answer = client.get(
                f"{url(index)}{instance}/records?timeout=2000",
                headers={"Accept": "application/vnd.kafka.json.v2+json"},
            )
            assert answer.status_code == 200, answer.text
            seen.extend(record["value"] for record in answer.json())

        for turn in range(10):
            if len(seen) < 10:
                read(turn % 2)
        assert sorted(seen) == list(range(10))
        assert client.post(f"{url(1)}{instance}/offsets", headers=v2).status_code in (200, 204)
        cluster.roll_deployment("gateway")
        sent = client.post(f"{url(1)}/topics/hello-by-rest", json=body, headers=json_v2)
        assert sent.status_code == 200, sent.text
        for turn in range(10):
            if len(seen) < 20:
                read(turn % 2)
        assert sorted(seen) == sorted([*range(10)] * 2)


def test_pods_reach_each_other_only_where_the_network_policies_let_them(
    cluster: SimulatedKubernetes,
) -> None:
    """Nothing enforces the policies here, so the test checks that every existing connection is one
    that they allow.
    """
    by_address = {
        pod.address: pod.plan.labels["app.kubernetes.io/name"] for pod in cluster.pods.values()
    }
    seen = set()
    for pod in cluster.pods.values():
        for address, port in pod.connections():
            if address in by_address and port in PORTS:
                seen.add((by_address[pod.address], by_address[address], port))
    assert {
        ("quorum", "quorum", 9095),
        ("broker", "quorum", 9094),
        ("gateway", "broker", 9090),
    } <= seen
    for source, target, port in seen:
        assert target in EGRESS[source].get(port, ()), f"{source} dials {target}:{port}"
        assert source in INGRESS[target][PORTS[port]], f"{target}:{port} is closed to {source}"


def test_declared_topics_are_there_and_applying_them_again_changes_nothing(
    cluster: SimulatedKubernetes,
) -> None:
    made = httpx.get(
        f"https://{cluster.pods_of('gateway')[0].address}:8082/topics/hello",
        verify=cluster.client_tls(),
        timeout=30,
    )
    assert made.status_code == 200, made.text
    assert len(made.json()["partitions"]) == 3
    assert all(len(one["replicas"]) == 3 for one in made.json()["partitions"])
    assert made.json()["configs"]["min.insync.replicas"] == "2"
    assert cluster.run_job("apply-topics").splitlines()[1:] == ["hello: is as declared"]


def test_certificates_that_end_soon_are_renewed_and_no_others(
    cluster: SimulatedKubernetes, tmp_path: Path
) -> None:
    secrets = cluster.api.secrets
    authority = CertificateAuthority(tmp_path)
    for name, content in secrets["odradek-ca"].items():
        (tmp_path / name).write_bytes(content)
    for name, days in (("client", 29), ("prometheus", 3650)):
        certificate, key = authority.issue(name, hosts=[], days=days)
        secrets[f"odradek-{name}-tls"] |= {
            "tls.crt": certificate.read_bytes(),
            "tls.key": key.read_bytes(),
        }
    before = {name: dict(files) for name, files in secrets.items()}
    said = cluster.run_job("renew-certificates")
    assert said.splitlines() == [
        f"renewed the certificate in secret odradek-{name}-tls" for name in ("prometheus", "client")
    ]
    assert cluster.run_job("renew-certificates") == ""
    assert {name for name in secrets if secrets[name] != before[name]} == {
        "odradek-prometheus-tls",
        "odradek-client-tls",
    }
    url = f"https://{cluster.pods_of('gateway')[0].address}:8082/topics/hello"
    assert httpx.get(url, verify=cluster.client_tls(), timeout=30).status_code == 200
    days_left = (first_end_s(secrets["odradek-client-tls"]["tls.crt"]) - time.time()) / 86_400
    assert 59 < days_left <= 60


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_spark_job_reads_and_writes_the_cluster(cluster: SimulatedKubernetes) -> None:
    """The plain Job runs unchanged: with its image's user, a read-only root, and certificates from
    files.
    """
    need("Java 17 or 21")
    url = f"https://{cluster.pods_of('gateway')[0].address}:8082"
    v2 = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    with httpx.Client(timeout=60, verify=cluster.client_tls()) as client:
        records = [{"key": f"k{number % 3}", "value": number} for number in range(30)]
        sent = client.post(f"{url}/topics/hello", json={"records": records}, headers=v2)
        assert sent.status_code == 200, sent.text
        counts = {"topic_name": "hello-counts", "partitions_count": 1}
        made = client.post(f"{url}/v3/clusters/odradek/topics", json=counts)
        assert made.status_code == 201, made.text
        cluster.run_job("count-by-key", timeout_s=SPARK_S_MAX)
        wish = {"name": "one", "format": "json", "auto.offset.reset": "earliest"}
        instance = f"{url}/consumers/verify-counts/instances/one"
        plain = {"Content-Type": "application/vnd.kafka.v2+json"}
        assert client.post(f"{url}/consumers/verify-counts", json=wish, headers=plain).is_success
        topics = {"topics": ["hello-counts"]}
        assert client.post(f"{instance}/subscription", json=topics, headers=plain).is_success
        found: dict[str, int] = {}
        accept = {"Accept": "application/vnd.kafka.json.v2+json"}
        for _ in range(10):
            if len(found) < 3:
                read = client.get(f"{instance}/records?timeout=3000", headers=accept)
                found |= {r["value"]["key"]: r["value"]["records"] for r in read.json()}
        assert sorted(found.values()) == [10, 10, 10], found
