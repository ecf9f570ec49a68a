"""The manifests as `kubectl kustomize` renders them, and the policies that each object must keep."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
K8S = ROOT / "deploy" / "k8s"
OVERLAYS = (".", "base", "overlays/dev", "overlays/prod")
Object = dict[str, Any]


def has_kubectl() -> bool:
    return shutil.which("kubectl") is not None


@functools.cache
def render(overlay: str) -> str:
    done = subprocess.run(
        ["kubectl", "kustomize", str(K8S / overlay)], capture_output=True, text=True, check=True
    )
    return done.stdout


def objects(overlay: str) -> list[Object]:
    """Fresh copies: a test may change them."""
    return [one for one in yaml.safe_load_all(render(overlay)) if one]


def pods(found: list[Object]) -> Iterator[tuple[str, Object]]:
    """(kind/name, pod template) of everything that makes pods."""
    for one in found:
        if one["kind"] in ("StatefulSet", "Deployment", "Job"):
            yield f"{one['kind']}/{one['metadata']['name']}", one["spec"]["template"]


def violations(found: list[Object]) -> list[str]:
    """Everything that KUBERNETES' restricted level and the cluster's own rules ask for and these lack."""
    wrong: list[str] = []
    for name, template in pods(found):
        wrong += [f"{name}: {text}" for text in _pod_violations(template)]
    wrong += _workload_violations(found)
    wrong += _cluster_violations(found)
    return wrong


def _pod_violations(template: Object) -> Iterator[str]:
    spec = template["spec"]
    security = spec.get("securityContext", {})
    if security.get("runAsNonRoot") is not True:
        yield "runs as root"
    if not security.get("runAsUser", 0) > 10_000 or not security.get("runAsGroup", 0) > 10_000:
        yield "user or group is not above 10000"
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "no seccomp profile"
    if not spec.get("serviceAccountName"):
        yield "no service account of its own"
    if spec.get("enableServiceLinks") is not False:
        yield "service links in the environment"
    for volume in spec.get("volumes", ()):
        if "emptyDir" in volume and "sizeLimit" not in (volume["emptyDir"] or {}):
            yield f"emptyDir {volume['name']} has no limit"
    for container in spec["containers"]:
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False:
            yield "privilege escalation"
        if own.get("readOnlyRootFilesystem") is not True:
            yield "writable root"
        if own.get("capabilities", {}).get("drop") != ["ALL"]:
            yield "keeps capabilities"
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        if not requests.get("memory") or requests.get("memory") != limits.get("memory"):
            yield "memory request and limit differ"
        if "cpu" not in requests or "cpu" in limits:
            yield "cpu must be requested and not limited"
        if ":" not in container.get("image", ""):
            yield "image without a tag"


def _workload_violations(found: list[Object]) -> Iterator[str]:
    for one in found:
        name = f"{one['kind']}/{one['metadata']['name']}"
        spec = one.get("spec", {})
        if one["kind"] not in ("StatefulSet", "Deployment"):
            continue
        pod = spec["template"]["spec"]
        container = pod["containers"][0]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe not in container:
                yield f"{name}: no {probe}"
        if not pod.get("topologySpreadConstraints"):
            yield f"{name}: not spread over zones"
        if "podAntiAffinity" not in pod.get("affinity", {}):
            yield f"{name}: not spread over hosts"
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{name}: has an API token"
        if one["kind"] == "Deployment":
            if "preStop" not in container.get("lifecycle", {}):
                yield f"{name}: no preStop"
            continue
        if spec.get("podManagementPolicy") != "Parallel":
            yield f"{name}: pods start one after the other"
        if spec.get("persistentVolumeClaimRetentionPolicy", {}).get("whenDeleted") != "Retain":
            yield f"{name}: volumes go with the set"
        if not 60 <= pod.get("terminationGracePeriodSeconds", 0) <= 120:
            yield f"{name}: the grace period is not 60 to 120 s"
        if pod.get("securityContext", {}).get("fsGroupChangePolicy") != "OnRootMismatch":
            yield f"{name}: volumes are chowned at each start"
        for probe, service in (
            ("startupProbe", "startup"),
            ("livenessProbe", "liveness"),
            ("readinessProbe", "readiness"),
        ):
            if container.get(probe, {}).get("grpc", {}).get("service") != service:
                yield f"{name}: {probe} does not ask for {service}"


def _cluster_violations(found: list[Object]) -> Iterator[str]:
    named = {(one["kind"], one["metadata"]["name"]): one for one in found}
    labels = named.get(("Namespace", "odradek"), {}).get("metadata", {}).get("labels", {})
    if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
        yield "the namespace does not enforce the restricted level"
    for component in ("quorum", "broker", "gateway"):
        budget = named.get(("PodDisruptionBudget", component), {}).get("spec", {})
        if budget.get("maxUnavailable") != 1:
            yield f"{component}: no disruption budget of 1"
        if ("NetworkPolicy", component) not in named:
            yield f"{component}: no network policy"
        account = named.get(("ServiceAccount", component), {})
        if account.get("automountServiceAccountToken") is not False:
            yield f"{component}: its account mounts tokens"
    for component in ("quorum", "broker"):
        service = named.get(("Service", component), {}).get("spec", {})
        if service.get("clusterIP") != "None" or not service.get("publishNotReadyAddresses"):
            yield f"{component}: no headless service that publishes early"
    deny = named.get(("NetworkPolicy", "default-deny"), {}).get("spec", {})
    if deny.get("podSelector") != {} or set(deny.get("policyTypes", ())) != {"Ingress", "Egress"}:
        yield "nothing is denied by default"
    if ("HorizontalPodAutoscaler", "gateway") not in named:
        yield "the gateway does not scale"
