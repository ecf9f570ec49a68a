"""Installs, restarts and disturbs the cluster's workloads on a real Kubernetes, with clients in a
namespace of their own.
"""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.kubernetes.cluster import Cluster, wait_until
from tests.unit.kubernetes.rendered import K8S, ROOT

WORKLOADS = ("statefulset/quorum", "statefulset/broker", "deployment/gateway")
IMAGE = "odradek:0.1.0"
SPARK_IMAGE = "odradek-spark:0.1.0"
CLIENTS = "apps"
RATE = 500  # records/s
ROLL_S_MAX = 300
RESPONSE_S_MAX = 180.0
CODE = (
    "tests/e2e/faults/cluster_faults.py",
    "tests/e2e/faults/workload.py",
    "tests/integration/deployment/load_client.py",
)


class Installation:
    """The workloads that `kubectl apply -k` created on a cluster."""

    def __init__(self, cluster: Cluster, namespace: str = "odradek") -> None:
        self.cluster, self.namespace = cluster, namespace

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl(f"--namespace={self.namespace}", *words, stdin=stdin)

    def apply(self, overlay: str, *, quota: Mapping[str, str] | None = None) -> None:
        """Apply an overlay; with `quota`, to a namespace that has this ResourceQuota already."""
        if quota is not None:
            self.cluster.kubectl("apply", "-f", str(K8S / "base" / "namespace.yaml"))
            hard = ",".join(f"{name}={amount}" for name, amount in quota.items())
            self.kubectl("create", "quota", "everything", f"--hard={hard}")
        self.cluster.kubectl("apply", "-k", overlay)

    def install_chart(self, helm: Path, chart: Path) -> None:
        """Install the Helm chart as its README says."""
        self.cluster.kubectl("create", "namespace", self.namespace)
        restricted = "pod-security.kubernetes.io/enforce=restricted"
        self.cluster.kubectl("label", "namespace", self.namespace, restricted)
        command = [str(helm), "install", "odradek", str(chart), f"--namespace={self.namespace}"]
        command.append(f"--kubeconfig={self.cluster.kubeconfig}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def wait_installed(self) -> None:
        """Wait until all workloads are ready and the jobs are complete."""
        for workload in WORKLOADS:
            self.wait_rolled(workload)
        for job in ("make-certificates", "apply-topics"):
            self.kubectl(
                "wait", "--for=condition=Complete", f"job/{job}", f"--timeout={ROLL_S_MAX}s"
            )

    def wait_rolled(self, workload: str) -> None:
        self.kubectl("rollout", "status", workload, f"--timeout={ROLL_S_MAX}s")

    def roll(self, workload: str) -> float:
        """Restart the pods of a workload as its strategy says, and return how many seconds that
        took.
        """
        began_s = time.monotonic()
        self.kubectl("rollout", "restart", workload)
        self.wait_rolled(workload)
        return round(time.monotonic() - began_s, 1)

    def restarts(self) -> dict[str, int]:
        """Return how often containers were restarted, by pod; pods without restarts are left
        out.
        """
        counts = {
            pod["metadata"]["name"]: sum(
                status["restartCount"]
                for kind in ("containerStatuses", "initContainerStatuses")
                for status in pod["status"].get(kind, ())
            )
            for pod in self.cluster.objects("pods", f"--namespace={self.namespace}")
        }
        return {pod: count for pod, count in counts.items() if count}

    def node_of(self, pod: str) -> int:
        (found,) = self.cluster.objects(
            "pods", f"--namespace={self.namespace}", f"--field-selector=metadata.name={pod}"
        )
        return int(found["spec"]["nodeName"].removeprefix("node-"))

    def logged(self, pod: str, event: str) -> list[dict[str, Any]]:
        """Return the events of this name in the log of the pod's container."""
        lines = self.kubectl("logs", pod, f"--container={pod.split('-')[0]}").splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return [one for one in events if one["event"] == event]

    def odradek(self, *words: str, stdin: str | None = None) -> str:
        """Run the command line as the super user, in the pod that the README describes."""
        if not self.cluster.objects(
            "jobs", f"--namespace={self.namespace}", "--selector=app.kubernetes.io/name=admin"
        ):
            self.cluster.kubectl("apply", "-k", str(K8S / "admin"))
        selector = "--selector=app.kubernetes.io/name=admin"
        self.kubectl("wait", "--for=condition=Ready", "pod", selector, f"--timeout={ROLL_S_MAX}s")
        attach = () if stdin is None else ("--stdin",)
        return self.kubectl("exec", *attach, "job/admin", "--", "odradek", *words, stdin=stdin)

    def active_controller(self) -> int:
        facts = json.loads(self.odradek("cluster", "info", "--output", "json"))
        return int(facts["active_controller"])

    def kill(self, pod: str) -> None:
        """Send SIGKILL to the pod's process, and wait until the kubelet has started it again."""
        before = self.restarts().get(pod, 0)
        self.cluster.kill_pod(pod)
        wait_until(lambda: self.restarts().get(pod, 0) > before, f"{pod} is restarted")

    def wait_ready(self, pod: str) -> None:
        self.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", f"--timeout={ROLL_S_MAX}s")

    # Clients

    def prepare_clients(self, secrets: Mapping[str, str]) -> None:
        """Create the clients' namespace with copies of secrets, and with the program that writes
        records.
        """
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        items: list[dict[str, Any]] = [
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": CLIENTS, "labels": labels},
            }
        ]
        for source, name in secrets.items():
            secret = json.loads(self.kubectl("get", "secret", source, "-o", "json"))
            secret["metadata"] = {"name": name, "namespace": CLIENTS}
            items.append(secret)
        files = {path.replace("/", "--"): (ROOT / path).read_text() for path in CODE}
        code = {"name": "code", "namespace": CLIENTS}
        items.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": code, "data": files})
        listed = {"apiVersion": "v1", "kind": "List", "items": items}
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(listed))

    @contextmanager
    def load(self, *, node: int | None = None, rate: int = RATE) -> Iterator[LoadPod]:
        """Produce with acks=all during the `with` block.

        Every record must be acknowledged, and be read once.
        """
        self.prepare_clients({"odradek-admin-tls": "tls"})
        load = LoadPod(self.cluster, f"load-{uuid.uuid4().hex[:6]}", self.namespace, rate, node)
        try:
            yield load
            verdict = load.end()
            assert verdict["failures"] == [], verdict
            assert verdict["faults"] == [], verdict
            assert verdict["acknowledged"] == verdict["sent"] > 0, verdict
        finally:
            load.delete()


class LoadPod:
    """A pod that runs `tests.integration.deployment.load_client`; its commands go through a FIFO."""

    def __init__(
        self, cluster: Cluster, name: str, namespace: str, rate: int, node: int | None
    ) -> None:
        self._cluster, self._name = cluster, name
        self._count = 0
        module = "tests.integration.deployment.load_client"
        run = f"exec python -m {module} bootstrap.{namespace}.svc:9090 {rate} < /tmp/commands"
        hold = "mkfifo /tmp/commands; sleep infinity > /tmp/commands & echo $! > /tmp/holder"
        items = [{"key": path.replace("/", "--"), "path": path} for path in CODE]
        pod = client_pod(
            name,
            ["sh", "-c", f"{hold}; {run}"],
            node=node,
            volumes={"/code": {"configMap": {"name": "code", "items": items}}},
            environment={"PYTHONPATH": "/code"},
        )
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
        self.topic: str = self._told()["topic"]

    def gap_s(self) -> float:
        """Return the longest pause of a partition since the last call; a pause that has not ended
        is waited for.
        """
        self._do("echo gap > /tmp/commands")
        return float(self._told()["gap_s"])

    def end(self) -> dict[str, Any]:
        self._do("kill $(cat /tmp/holder)")
        return self._told()

    def delete(self) -> None:
        words = ("delete", "pod", self._name, "--grace-period=0", "--force", "--ignore-not-found")
        self._cluster.kubectl(f"--namespace={CLIENTS}", *words)

    def _do(self, command: str) -> None:
        self._cluster.kubectl(
            f"--namespace={CLIENTS}", "exec", self._name, "--", "sh", "-c", command
        )

    def _told(self) -> dict[str, Any]:
        """Return the next line that the client prints."""
        self._count += 1
        lines: list[str] = []

        def is_printed() -> bool:
            logs = self._cluster.kubectl(f"--namespace={CLIENTS}", "logs", self._name, check=False)
            lines[:] = [line for line in logs.splitlines() if line.startswith("{")]
            return len(lines) >= self._count

        wait_until(is_printed, f"{self._name} prints line {self._count}", RESPONSE_S_MAX)
        event: dict[str, Any] = json.loads(lines[self._count - 1])
        return event


def client_pod(
    name: str,
    command: list[str],
    *,
    node: int | None = None,
    namespace: str = CLIENTS,
    labels: Mapping[str, str] | None = None,
    volumes: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    secret: str | None = "tls",
    hosts: Mapping[str, str] | None = None,
    memory: str = "512Mi",
) -> dict[str, object]:
    """Return a client's pod as the README describes it: with the label, and with a certificate.

    `hosts` are addresses by name, which the pod uses before those of the DNS.
    """
    mounts: dict[str, object] = {"/tmp": {"emptyDir": {"sizeLimit": "64Mi"}}, **(volumes or {})}
    if secret is not None:
        mounts["/etc/odradek-tls"] = {"secret": {"secretName": secret, "defaultMode": 0o440}}
    named = {f"volume-{index}": path for index, path in enumerate(mounts)}
    container = {
        "name": "client",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "env": [{"name": key, "value": value} for key, value in (environment or {}).items()],
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi", "ephemeral-storage": "16Mi"},
            "limits": {"memory": memory, "ephemeral-storage": "64Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": key, "mountPath": path} for key, path in named.items()],
    }
    spec: dict[str, object] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10100,
            "runAsGroup": 10100,
            "fsGroup": 10100,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": key, **dict(mounts[path])} for key, path in named.items()],  # type: ignore[call-overload]
    }
    if hosts is not None:
        spec["hostAliases"] = host_aliases(hosts)
    if node is not None:
        spec["nodeSelector"] = {"kubernetes.io/hostname": f"node-{node}"}
    chosen = {"odradek.io/client": "true"} if labels is None else dict(labels)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": chosen},
        "spec": spec,
    }


def host_aliases(hosts: Mapping[str, str]) -> list[dict[str, object]]:
    return [{"ip": address, "hostnames": [name]} for name, address in hosts.items()]
