"""Runs the StatefulSets, Deployments and Jobs of an overlay as processes, as their controllers and
the kubelet would.

Pods of a StatefulSet start together (`podManagementPolicy: Parallel`). A rolling update replaces
them one at a time, from the highest ordinal down: preStop, SIGTERM, the grace period, SIGKILL; a
new pod with the same name, the same claims and *another address*; startup probe, readiness probe;
then the next pod. These are not simulated: the image, the scheduler, kube-proxy (a service's name
resolves to its ready pods), and the enforcement of NetworkPolicies and memory limits.
"""

from __future__ import annotations

import shutil
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.deployment.api_server import ApiServer
from tests.integration.deployment.cluster_dns import ClusterDns
from tests.integration.deployment.pod_plan import Mount, Planner, PodPlan, Probe
from tests.integration.deployment.pod_sandbox import PodNetwork, PodProcess
from tests.unit.kubernetes.rendered import Object, objects

ZONES = ("zone-a", "zone-b", "zone-c")
ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
READY_S_MAX = 90.0
_POLL_S = 0.1
_NO_CHECK = ssl._create_unverified_context()  # a kubelet does not check certificates


class SimulatedKubernetes:
    """One namespace with one overlay.

    It is opened, applied, and closed; meanwhile tests roll and break its pods.
    """

    def __init__(self, overlay: str, scratch: Path, *, beside: Sequence[str] = ()) -> None:
        """`beside` names further folders with jobs. Only `run_job` starts these jobs."""
        self.scratch = scratch
        own = objects(overlay)
        self._own_jobs = [one["metadata"]["name"] for one in own if one["kind"] == "Job"]
        self.found = own + [one for folder in beside for one in objects(folder)]
        self.network = PodNetwork(scratch)
        self.pods: dict[str, PodProcess] = {}
        self._ready: set[str] = set()
        self._workloads = {
            (one["kind"], one["metadata"]["name"]): one
            for one in self.found
            if one["kind"] in ("StatefulSet", "Deployment", "Job", "HorizontalPodAutoscaler")
        }
        for one in self.found:
            if one["kind"] == "CronJob":  # `run_job` runs it; no clock does
                job = {**one, "kind": "Job", **one["spec"]["jobTemplate"]}
                self._workloads["Job", one["metadata"]["name"]] = job
        self.namespace = next(iter(self._workloads.values()))["metadata"]["namespace"]
        self.api = ApiServer(scratch, host=self.network.gateway, namespace=self.namespace)
        self._dns = ClusterDns(self.network.gateway, namespace=self.namespace)
        self.network.resolver_path.write_text(self._dns.resolv_conf())
        self._planner = Planner(self.found, self.api.secrets)
        self._suffixes = 0

    def __enter__(self) -> Self:
        self.api.__enter__()
        self._dns.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pod in self.pods.values():
            if pod.process.poll() is None:
                pod.kill()
            pod.remove()
        self._dns.__exit__(kind, error, trace)
        self.api.__exit__(kind, error, trace)
        self.network.close()

    # --- workloads -------------------------------------------------------------------------------

    def apply(self) -> None:
        """Start all pods together, and return when every pod is ready.

        Raises:
            AssertionError: a pod was not ready in time; the error has the end of its log.
        """
        self.run_job("make-certificates")  # pods wait for the secrets that they mount
        for name in self._names_of("StatefulSet"):
            for pod in self.pod_names(name):
                self.start(pod)
        for name in self._names_of("Deployment"):
            scaler = self._workloads["HorizontalPodAutoscaler", name]["spec"]
            for _ in range(scaler["minReplicas"]):
                self.start(self.new_pod_name(name))
        for pod in list(self.pods):
            self.wait_ready(pod)
        for name in self._own_jobs:
            if name != "make-certificates":
                self.run_job(name)

    def pod_names(self, stateful_set: str) -> list[str]:
        """Return the names of all pods, in order of their ordinals."""
        spec = self._workloads["StatefulSet", stateful_set]["spec"]
        first = spec["ordinals"]["start"]
        return [f"{stateful_set}-{first + index}" for index in range(spec["replicas"])]

    def pods_of(self, workload: str) -> list[PodProcess]:
        """Return the pods of a workload that exist now."""
        return [
            pod
            for pod in self.pods.values()
            if pod.plan.labels.get("app.kubernetes.io/name") == workload
        ]

    def new_pod_name(self, deployment: str) -> str:
        """Return a name as a ReplicaSet makes it; no name is used twice."""
        self._suffixes += 1
        return f"{deployment}-{self._suffixes:05x}"

    def roll_stateful_set(
        self, name: str, *, after_each: Callable[[str], None] = lambda _: None
    ) -> None:
        """Restart the pods as a rolling update does; `after_each` gets each pod when it is ready again."""
        for pod in reversed(self.pod_names(name)):
            assert self.stop(pod), f"{pod} did not end within its grace period"
            self.start(pod)
            self.wait_ready(pod)
            after_each(pod)

    def roll_deployment(self, name: str) -> None:
        """Restart the pods as with `maxUnavailable: 0, maxSurge: 1`: start a new pod, then stop an old one."""
        for old in [pod.plan.name for pod in self.pods_of(name)]:
            new = self.new_pod_name(name)
            self.start(new)
            self.wait_ready(new)
            assert self.stop(old), f"{old} did not end within its grace period"

    def run_job(self, name: str, *, timeout_s: float = READY_S_MAX) -> str:
        """Run a job to its end, and return its output. Raises AssertionError if it failed."""
        self._log_path(f"{name}-job").unlink(missing_ok=True)
        self._start_as(f"{name}-job", self._workloads["Job", name])
        pod = self.pods.pop(f"{name}-job")
        try:
            pod.process.wait(timeout_s)
        finally:
            if pod.process.poll() is None:
                pod.kill()
            pod.remove()
        said = pod.log_path.read_text()
        assert pod.process.returncode == 0, f"the job {name} failed:\n{said}"
        return said

    # --- pods ------------------------------------------------------------------------------------

    def start(self, pod: str) -> None:
        """Start the pod with a new address, without waiting for it."""
        owner, _, suffix = pod.rpartition("-")
        stateful_set = self._workloads.get(("StatefulSet", owner))
        if stateful_set is None:
            self._start_as(pod, self._workloads["Deployment", owner])
        else:
            self._start_as(pod, stateful_set, ordinal=int(suffix))

    def start_job(self, name: str) -> None:
        """Start the pod of a job that runs until it is killed, without waiting for it."""
        self._start_as(name, self._workloads["Job", name])

    def start_client(self, name: str, module: str, secret: str, *arguments: str) -> PodProcess:
        """Start a pod that is not in the manifests: it runs a module of the tests with a
        certificate.

        The secret's files are below /etc/odradek-tls; its standard input and output are pipes.
        """
        plan = PodPlan(
            name=name,
            labels={"simulation": "client", "odradek.io/client": "true"},
            command=("python", "-m", module, *arguments),
            environment={"PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONUNBUFFERED": "1"},
            mounts=(
                Mount(path="/etc/odradek-tls", read_only=True, files=self.api.secrets[secret]),
            ),
            user=10_200,
            group=10_200,
            read_only_root=True,
            grace_s=30,
            pre_stop_s=0,
        )
        return self._launch(plan, self.network.new_address())

    def stop(self, pod: str) -> bool:
        """Run preStop, send SIGTERM, and wait for the grace period; return whether the pod ended
        without SIGKILL.

        Its address is removed, too.
        """
        process = self.pods[pod]
        self._ready.discard(pod)
        self._publish()
        began_s = time.monotonic()
        if process.plan.pre_stop_s:
            time.sleep(process.plan.pre_stop_s)  # the manifest's own pause
        left_s = process.plan.grace_s - (time.monotonic() - began_s)
        is_clean = process.terminate(left_s)
        assert process.process.returncode == 0 or not is_clean, (
            f"{pod} ended with {process.process.returncode}:\n{process.log_tail()}"
        )
        self._forget(pod)
        return is_clean

    def kill(self, pod: str) -> None:
        """Kill the pod, as the death of its node does."""
        self.pods[pod].kill()
        self._forget(pod)

    def lose_claims(self, pod: str) -> None:
        """Delete the volumes of a stopped pod; the next one finds empty ones."""
        assert pod not in self.pods, f"{pod} runs"
        for claim in (self.scratch / "volumes").glob(f"*-{pod}"):
            shutil.rmtree(claim)

    def put_claims_aside(self, pod: str) -> None:
        """Move the volumes away, so that `restore_claims` can bring them back."""
        assert pod not in self.pods, f"{pod} runs"
        for claim in (self.scratch / "volumes").glob(f"*-{pod}"):
            claim.rename(claim.with_name(f"aside-{claim.name}.saved"))

    def restore_claims(self, pod: str) -> None:
        """Replace the pod's present volumes by those that were moved away."""
        self.lose_claims(pod)
        for saved in (self.scratch / "volumes").glob(f"aside-*-{pod}.saved"):
            saved.rename(saved.with_name(saved.name.removeprefix("aside-").removesuffix(".saved")))

    def is_ready(self, pod: str) -> bool:
        """Run one readiness probe now."""
        process = self.pods[pod]
        return _answers_well(process.address, process.plan.probes["readiness"])

    def is_live(self, pod: str) -> bool:
        """Run one liveness probe now."""
        process = self.pods[pod]
        return _answers_well(process.address, process.plan.probes["liveness"])

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition on the pods."""
        deadline_s = time.monotonic() + READY_S_MAX
        while not condition():
            assert time.monotonic() < deadline_s, f"not within {READY_S_MAX:.0f} s: {what}"
            time.sleep(_POLL_S)

    def client_tls(self) -> ssl.SSLContext:
        """Return TLS options for HTTP clients with the certificate in `odradek-client-tls`.

        Host names are not checked, because no certificate has the addresses of pods.
        """
        folder = self.scratch / "client-tls"
        folder.mkdir(exist_ok=True)
        for name, content in self.api.secrets["odradek-client-tls"].items():
            (folder / name).write_bytes(content)
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        context.check_hostname = False
        return context

    def wait_ready(self, pod: str, timeout_s: float = READY_S_MAX) -> None:
        """Wait until the startup probe and then the readiness probe succeed, asking more often than
        a kubelet does.
        """
        process = self.pods[pod]
        deadline_s = time.monotonic() + timeout_s
        for kind in ("startup", "readiness"):
            while not _answers_well(process.address, process.plan.probes[kind]):
                status = process.process.poll()
                assert status is None, f"{pod} ended with {status}:\n{process.log_tail()}"
                assert time.monotonic() < deadline_s, (
                    f"{pod} does not pass {kind}:\n{process.log_tail()}"
                )
                time.sleep(_POLL_S)
        self._ready.add(pod)
        self._publish()

    # --- inside ----------------------------------------------------------------------------------

    def _start_as(self, pod: str, owner: Object, *, ordinal: int | None = None) -> None:
        address = self.network.new_address()
        zone = ZONES[ordinal % len(ZONES)] if ordinal is not None else ""
        plan = self._planner.plan(owner, pod, ordinal=ordinal, zone=zone, address=address)
        if owner["spec"]["template"]["spec"].get("automountServiceAccountToken"):
            account = Mount(path=ACCOUNT_PATH, read_only=True, files=self.api.account_files())
            plan = replace(
                plan,
                mounts=(*plan.mounts, account),
                environment={**plan.environment, **self.api.environment()},
            )
        self._launch(plan, address)

    def _launch(self, plan: PodPlan, address: str) -> PodProcess:
        assert plan.name not in self.pods, f"{plan.name} runs already"
        volumes = self.scratch / "volumes"
        volumes.mkdir(exist_ok=True)
        self.pods[plan.name] = pod = PodProcess(
            plan,
            self.network,
            address=address,
            volumes=volumes,
            log_path=self._log_path(plan.name),
        )
        self._publish()
        return pod

    def _log_path(self, pod: str) -> Path:
        logs = self.scratch / "logs"
        logs.mkdir(exist_ok=True)
        return logs / f"{pod}.log"

    def _forget(self, pod: str) -> None:
        self._ready.discard(pod)
        self.pods.pop(pod).remove()
        self._publish()

    def _publish(self) -> None:
        """Publish the DNS names: a service's name resolves to its ready pods, and each pod of a
        headless service has a name, too.
        """
        headless: dict[str, list[str]] = {}
        services: dict[str, list[str]] = {}
        for service in (one for one in self.found if one["kind"] == "Service"):
            spec, name = service["spec"], service["metadata"]["name"]
            early = spec.get("publishNotReadyAddresses", False)
            chosen = [
                pod
                for pod in self.pods.values()
                if spec["selector"].items() <= pod.plan.labels.items()
                and (early or pod.plan.name in self._ready)
            ]
            if spec.get("clusterIP") == "None":
                headless[name] = [pod.address for pod in chosen]
                headless |= {f"{pod.plan.name}.{name}": [pod.address] for pod in chosen}
            else:
                services[name] = [pod.address for pod in chosen]
        self._dns.publish(headless, services)

    def _names_of(self, kind: str) -> list[str]:
        return [name for found, name in self._workloads if found == kind]


def _answers_well(address: str, probe: Probe) -> bool:
    if probe.path is not None:
        try:
            url = f"{probe.scheme}://{address}:{probe.port}{probe.path}"
            return httpx.get(url, timeout=probe.timeout_s, verify=_NO_CHECK).is_success
        except httpx.HTTPError:
            return False
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"{address}:{probe.port}", options=options) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=probe.service), timeout=probe.timeout_s
            )
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
