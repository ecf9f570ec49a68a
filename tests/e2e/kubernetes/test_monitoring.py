"""The monitors and alerts of the manifests, with the real Prometheus operator and the real Prometheus."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.kubernetes import policy_rules, programs
from tests.e2e.kubernetes.cluster import Cluster, wait_until
from tests.e2e.kubernetes.conftest import Report
from tests.e2e.kubernetes.image import save_program
from tests.e2e.kubernetes.installation import Installation
from tests.unit.kubernetes.rendered import K8S

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]
MONITORING = K8S / "components" / "monitoring"
NAMESPACE = "monitoring"
RELOADER = "prometheus-config-reloader"
PROGRAMS = ("operator", "prometheus", RELOADER)
ALERT = "OdradekFencedBrokers"
ALERT_WAIT = "20s"  # instead of the five minutes in the manifests
ALERT_S_MAX = 180.0


def overlay(folder: Path) -> Path:
    """Write the dev overlay with the monitoring component, and with one alert that does not wait for minutes."""
    rules: list[dict[str, Any]] = alerts()["groups"][0]["rules"]
    (index,) = [index for index, rule in enumerate(rules) if rule["alert"] == ALERT]
    path = f"/spec/groups/0/rules/{index}/for"
    kustomization = {
        "resources": [os.path.relpath(K8S, folder.resolve())],
        "components": [os.path.relpath(MONITORING, folder.resolve())],
        "patches": [
            {
                "target": {"kind": "PrometheusRule"},
                "patch": json.dumps([{"op": "replace", "path": path, "value": ALERT_WAIT}]),
            }
        ],
        "namespace": "odradek",
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return folder


def alerts() -> dict[str, Any]:
    """Return the groups of rules as promtool and Prometheus read them."""
    spec: dict[str, Any] = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["spec"]
    return spec


def prometheus_objects() -> list[dict[str, Any]]:
    """Return a Prometheus that watches the namespace `odradek`, with the rights that it needs for that."""
    account = {"name": "prometheus", "namespace": NAMESPACE}
    watched = {"matchLabels": {"kubernetes.io/metadata.name": "odradek"}}
    core = {"apiGroups": [""], "resources": ["services", "endpoints", "pods"]}
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]}
    group = "rbac.authorization.k8s.io"
    spec = {
        "image": "localhost/prometheus:1",
        "version": "v3.6.0",  # the newest that this operator knows
        "replicas": 1,
        "serviceAccountName": "prometheus",
        "serviceMonitorNamespaceSelector": watched,
        "serviceMonitorSelector": {},
        "ruleNamespaceSelector": watched,
        "ruleSelector": {},
        "evaluationInterval": "5s",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "fsGroup": 65534},
        "resources": {"requests": {"cpu": "50m", "memory": "200Mi"}},
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "prometheus"},
            "rules": [{**one, "verbs": ["get", "list", "watch"]} for one in (core, slices)],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "prometheus"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "prometheus"},
            "subjects": [{"kind": "ServiceAccount", **account}],
        },
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "Prometheus",
            "metadata": {"name": "odradek", "namespace": NAMESPACE},
            "spec": spec,
        },
    ]


class Watched:
    """A cluster that a Prometheus watches."""

    def __init__(self, installation: Installation, address: str) -> None:
        self.installation, self._address = installation, address

    def asked(self, path: str) -> Any:
        """Return the data of a response of Prometheus' API."""
        response = httpx.get(f"http://{self._address}:9090/api/v1/{path}", timeout=30)
        assert response.is_success, response.text
        return response.json()["data"]

    def alerts(self, *states: str) -> set[str]:
        """Return the names of the alerts that are in one of the states `pending` and `firing`."""
        found = self.asked("alerts")["alerts"]
        return {one["labels"]["alertname"] for one in found if one["state"] in states}


@pytest.fixture(scope="module")
def watched(
    built_programs: Path, image: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("kubernetes")
    monitoring = programs.build_monitoring()
    images = [image]
    for program in PROGRAMS:
        images.append(folder / f"{program}.tar")
        save_program(monitoring / program, f"localhost/{program}:1", images[-1])
    with Cluster(folder, built_programs, images, nodes=1) as cluster:
        bundle = programs.operator_bundle()
        for program, name in ((RELOADER, RELOADER), ("operator", "prometheus-operator")):
            published = rf"quay\.io/prometheus-operator/{name}:[\w.]+"
            bundle = re.sub(published, f"localhost/{program}:1", bundle)
        cluster.kubectl("apply", "--server-side", "-f", "-", stdin=bundle)
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        operator = ("--namespace=default", "rollout", "status", "deployment/prometheus-operator")
        cluster.kubectl(*operator, "--timeout=120s")
        installation = Installation(cluster)
        installation.apply(str(overlay(tmp_path_factory.mktemp("overlay"))))
        cluster.kubectl("create", "namespace", NAMESPACE)
        listed = {"apiVersion": "v1", "kind": "List", "items": prometheus_objects()}
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(listed))
        installation.wait_installed()
        space = f"--namespace={NAMESPACE}"
        wait_until(
            lambda: bool(cluster.objects("statefulsets", space)), "the operator made Prometheus"
        )
        rolled = ("rollout", "status", "statefulset/prometheus-odradek", "--timeout=120s")
        cluster.kubectl(space, *rolled)
        (pod,) = cluster.objects("pods", space)
        policy_rules.enforce(cluster)
        yield Watched(installation, pod["status"]["podIP"])
        policy_rules.stop()


def test_the_definitions_notice_a_field_of_a_monitor_that_they_do_not_know(
    watched: Watched,
) -> None:
    """The definitions refuse an unknown field, so they have checked the overlay's monitors and rules."""
    cluster = watched.installation.cluster
    monitor = cluster.objects("servicemonitors")[0]
    monitor["spec"]["endpoints"][0]["intervall"] = "15s"
    words = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
    with pytest.raises(RuntimeError, match="intervall"):
        cluster.kubectl(*words, stdin=json.dumps(monitor))


def test_every_process_is_scraped_through_the_policies(watched: Watched, report: Report) -> None:
    kinds = ("quorum", "broker", "gateway")

    def running() -> set[tuple[str, str]]:
        named = [
            (pod["metadata"]["labels"].get("app.kubernetes.io/name"), pod["metadata"]["name"])
            for pod in watched.installation.cluster.objects("pods")
        ]
        return {(kind, name) for kind, name in named if kind in kinds}

    def scraped() -> set[tuple[str, str]]:
        targets = watched.asked("targets?state=active")["activeTargets"]
        return {
            (one["labels"]["job"], one["labels"]["pod"]) for one in targets if one["health"] == "up"
        }

    enforced: set[tuple[str, str]] = set()

    def are_scraped() -> bool:
        nonlocal enforced
        pods = running()
        if pods != enforced:
            # The autoscaler of the gateways has changed their number. The rules contain the addresses of pods.
            policy_rules.enforce(watched.installation.cluster)
            enforced = pods
        return len(pods) >= 7 and scraped() == pods

    wait_until(are_scraped, "every process is scraped")
    report(targets=sorted(pod for _, pod in running()))
    up = watched.asked("query?query=up")["result"]
    assert {one["metric"]["job"] for one in up} == set(kinds)
    assert {one["value"][1] for one in up} == {"1"}


def test_promtool_and_prometheus_take_all_rules(watched: Watched, tmp_path: Path) -> None:
    file = tmp_path / "alerts.yaml"
    file.write_text(json.dumps(alerts()))
    promtool = programs.build_monitoring() / "promtool"
    checked = subprocess.run(
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    names = {rule["alert"] for group in alerts()["groups"] for rule in group["rules"]}

    def healthy() -> set[str]:
        groups = watched.asked("rules")["groups"]
        return {
            rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "ok"
        }

    wait_until(lambda: healthy() == names, "every rule was evaluated without an error")


def test_no_alert_fires_in_a_healthy_cluster_and_one_does_while_a_broker_is_gone(
    watched: Watched, report: Report
) -> None:
    installation, cluster = watched.installation, watched.installation.cluster
    wait_until(lambda: not watched.alerts("firing"), "no alert fires")
    cluster.kubectl("cordon", "node-1")  # the pod that replaces the deleted one finds no node
    installation.kubectl("delete", "pod", "broker-2", "--grace-period=0", "--force")
    wait_until(lambda: ALERT in watched.alerts("firing"), f"{ALERT} fires", ALERT_S_MAX)
    report(firing=sorted(watched.alerts("firing")))
    cluster.kubectl("uncordon", "node-1")
    selected = ("--namespace=odradek", "--field-selector=metadata.name=broker-2")
    wait_until(
        lambda: any(pod["status"].get("podIP") for pod in cluster.objects("pods", *selected)),
        "the new pod has an address",
    )
    # The rules contain the addresses of pods, and the new pod has another one.
    policy_rules.enforce(cluster)
    installation.wait_rolled("statefulset/broker")
    wait_until(
        lambda: ALERT not in watched.alerts("firing", "pending"), "it is resolved", ALERT_S_MAX
    )
    up = 'query?query=up{pod="broker-2"}'
    wait_until(
        lambda: [one["value"][1] for one in watched.asked(up)["result"]] == ["1"],
        "the new pod is scraped",
    )
