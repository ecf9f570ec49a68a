"""Checks the rendered objects against Kubernetes' restricted Pod Security Standard, and against
Odradek's own rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.unit.kubernetes.network_rules import network_violations
from tests.unit.kubernetes.rendered import Object, pods

NAME = "app.kubernetes.io/name"
DATA = "/var/lib/odradek"
TLS = "/etc/odradek-tls"
ALL_TLS = "/etc/odradek-all-tls"
ADMINISTRATORS = ("Job/admin", "Job/apply-topics")


def violations(found: list[Object]) -> list[str]:
    """Return the violations of Kubernetes' restricted Pod Security Standard, and of our own rules,
    by these objects.
    """
    wrong: list[str] = []
    for name, template in pods(found):
        wrong += [f"{name}: {text}" for text in _pod_violations(template)]
    wrong += _workload_violations(found)
    wrong += _stateful_violations(found)
    wrong += _gateway_violations(found)
    wrong += _cluster_violations(found)
    wrong += _access_violations(found)
    wrong += _address_violations(found)
    wrong += network_violations(found)
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
    if spec.get("volumes") and not security.get("fsGroup", 0) > 10_000:
        yield "no group for its volumes"
    if not spec.get("serviceAccountName"):
        yield "no service account of its own"
    if "automountServiceAccountToken" not in spec:
        yield "does not say whether it needs a token"
    if spec.get("enableServiceLinks") is not False:
        yield "service links in the environment"
    for volume in spec.get("volumes", ()):
        if "emptyDir" in volume and "sizeLimit" not in (volume["emptyDir"] or {}):
            yield f"emptyDir {volume['name']} has no limit"
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", ())}
        is_sidecar = container.get("restartPolicy") == "Always"
        if not is_sidecar and not any(
            v["name"] == mounts.get("/tmp") and "emptyDir" in v for v in spec["volumes"]
        ):
            yield "nowhere to write for what needs /tmp"
        for variable in container.get("env", ()):
            if re.search("PASSWORD|SECRET|TOKEN", variable["name"]) and "value" in variable:
                yield f"{variable['name']} is written down"
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
        if "ephemeral-storage" not in requests or "ephemeral-storage" not in limits:
            yield "ephemeral storage is not bounded"
        if ":" not in container.get("image", ""):
            yield "image without a tag"


def _access_violations(found: list[Object]) -> Iterator[str]:
    """Check that access control entries are used, and that keys are mounted only where they are needed."""
    for one in found:
        if one["kind"] == "ConfigMap" and "broker.properties" in one["data"]:
            lines = one["data"]["broker.properties"].splitlines()
            if "authorizer.class.name=acl" not in lines:
                yield "everybody with a certificate may do everything"
            if "super.users=User:CN=admin" not in lines:
                yield "the super user is not the administrator alone"
    for name, template in pods(found):
        mounted = {
            source.get("secretName") or source.get("name")
            for volume in template["spec"].get("volumes", ())
            for source in _secrets_of(volume)
        }
        if "odradek-ca" in mounted:
            yield f"{name}: holds the authority's key"
        if "odradek-admin-tls" in mounted and name not in ADMINISTRATORS:
            yield f"{name}: holds the super user's key"


def _address_violations(found: list[Object]) -> Iterator[str]:
    """Check that processes dial services with a cluster IP: other names are stale for a while after a restart."""
    of_a_pod = {
        one["metadata"]["name"]: one["spec"]
        for one in found
        if one["kind"] == "Service"
        and "statefulset.kubernetes.io/pod-name" in one["spec"]["selector"]
    }
    for name, spec in of_a_pod.items():
        if not spec.get("publishNotReadyAddresses"):
            yield f"{name}: nobody reaches its pod before it is ready"
    for one in found:
        if one["kind"] != "ConfigMap":
            continue
        for key in one["data"].keys() & {"QUORUM_VOTERS", "CONTROLLER_ENDPOINTS", "BOOTSTRAP"}:
            for host in re.findall(r"([a-z0-9.-]+):\d+", one["data"][key]):
                spec = of_a_pod.get(host, {"selector": {}})
                pod = spec["selector"].get("statefulset.kubernetes.io/pod-name")
                if pod != host or spec.get("clusterIP") == "None":
                    yield f"{key}: {host} is no service of one pod"


def _secrets_of(volume: Object) -> list[Object]:
    projected = volume.get("projected", {}).get("sources", ())
    sources = [volume.get("secret"), *(source.get("secret") for source in projected)]
    return [source for source in sources if source]


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
        startup = container.get("startupProbe", {})
        if startup.get("failureThreshold", 0) * startup.get("periodSeconds", 0) < 300:
            yield f"{name}: less than five minutes to start"
        if not pod.get("topologySpreadConstraints"):
            yield f"{name}: not spread over zones"
        if "podAntiAffinity" not in pod.get("affinity", {}):
            yield f"{name}: not spread over hosts"
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{name}: has an API token"
        spread = {one["topologyKey"] for one in pod.get("topologySpreadConstraints", ())}
        if "topology.kubernetes.io/zone" not in spread:
            yield f"{name}: zones do not matter to it"
        account = pod.get("serviceAccountName")
        if account != one["metadata"]["name"]:
            yield f"{name}: shares the account {account}"


def _stateful_violations(found: list[Object]) -> Iterator[str]:
    for one in found:
        if one["kind"] != "StatefulSet":
            continue
        name, spec = one["metadata"]["name"], one["spec"]
        pod = spec["template"]["spec"]
        container = pod["containers"][0]
        if spec.get("replicas") != 3 or spec.get("ordinals", {}).get("start") != 1:
            yield f"{name}: not the members 1, 2 and 3"
        if spec.get("serviceName") != name:
            yield f"{name}: no names for its pods"
        if spec.get("podManagementPolicy") != "Parallel":
            yield f"{name}: pods start one after the other"
        rolling = spec.get("updateStrategy", {}).get("rollingUpdate", {})
        if rolling.get("partition") != 0:
            yield f"{name}: a pod deleted during an update may return in the old revision"
        if "minReadySeconds" in spec:
            yield f"{name}: an update may delete all pods that have just become ready at once"
        retention = spec.get("persistentVolumeClaimRetentionPolicy", {})
        if {retention.get("whenDeleted"), retention.get("whenScaled")} != {"Retain"}:
            yield f"{name}: volumes go with the set"
        claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())]
        if claims != [m["name"] for m in container["volumeMounts"] if m["mountPath"] == DATA]:
            yield f"{name}: its data is on no claim"
        if not 60 <= pod.get("terminationGracePeriodSeconds", 0) <= 120:
            yield f"{name}: the grace period is not 60 to 120 s"
        if "lifecycle" in container:
            yield f"{name}: stopping waits for a hook, SIGTERM is enough"
        if pod.get("securityContext", {}).get("fsGroupChangePolicy") != "OnRootMismatch":
            yield f"{name}: volumes are chowned at each start"
        for probe, service in (
            ("startupProbe", "startup"),
            ("livenessProbe", "liveness"),
            ("readinessProbe", "readiness"),
        ):
            if container.get(probe, {}).get("grpc", {}).get("service") != service:
                yield f"{name}: {probe} does not ask for {service}"
        yield from _identity_violations(name, container)
        yield from _variable_violations(name, container)
        yield from _key_violations(name, pod)


def _identity_violations(name: str, container: Object) -> Iterator[str]:
    """Check that a pod's identity follows from its ordinal, its name and its zone."""
    values = {one["name"]: one for one in container.get("env", ())}
    paths = {
        key: one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        for key, one in values.items()
    }
    prefix = f"ODRADEK_{name.upper()}_"
    if paths.get(f"{prefix}NODE_ID") != "metadata.labels['apps.kubernetes.io/pod-index']":
        yield f"{name}: its id is not its ordinal"
    if name == "broker" and paths.get("POD_NAME") != "metadata.name":
        yield f"{name}: it does not know its own name"
    if name != "broker":
        return
    if paths.get(f"{prefix}BROKER_RACK") != "metadata.labels['topology.kubernetes.io/zone']":
        yield f"{name}: its rack is not its zone"
    if paths.get("POD_NAMESPACE") != "metadata.namespace":
        yield f"{name}: it does not know its namespace"
    if paths.get("POD_IP") != "status.podIP":
        yield f"{name}: it does not know its address"
    advertised = values.get(f"{prefix}ADVERTISED_LISTENERS", {}).get("value", "")
    if "$(POD_NAME)." not in advertised:
        yield f"{name}: it does not advertise its own name"
    if "REPLICATION://$(POD_IP):" not in advertised:
        yield f"{name}: other brokers look up its name, which may be a stale one"
    if re.search(r"\$\(POD_NAME\)\.broker\b", advertised):
        yield f"{name}: clients dial a name that is stale after each restart"


def _variable_violations(name: str, container: Object) -> Iterator[str]:
    """Check that a variable refers only to those before it: Kubernetes leaves other references as they are."""
    defined: set[str] = set()
    for one in container.get("env", ()):
        for used in re.findall(r"\$\((\w+)\)", one.get("value", "")):
            if used not in defined:
                yield f"{name}: {one['name']} refers to {used}, which comes later"
        defined.add(one["name"])


def _key_violations(name: str, pod: Object) -> Iterator[str]:
    """Check that a pod's container sees only its own keys.

    The keys of all pods of a set are on one volume, and the sidecar copies the pod's own keys from
    it.
    """
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        if _secrets_of(volumes.get(mount["name"], {})):
            yield f"{name}: sees the keys of other pods"
        if mount["mountPath"] == TLS and not mount.get("readOnly"):
            yield f"{name}: may write its own identity"
    for sidecar in pod.get("initContainers", ()):
        names = {one["name"]: one.get("valueFrom", {}) for one in sidecar.get("env", ())}
        own = names.get("POD_NAME", {}).get("fieldRef", {}).get("fieldPath") == "metadata.name"
        shared = [m["name"] for m in sidecar["volumeMounts"] if m["mountPath"] == TLS]
        probe = sidecar.get("startupProbe", {}).get("exec", {}).get("command")
        waits = probe == ["test", "-f", f"{TLS}/current/tls.key"]
        if sidecar.get("restartPolicy") != "Always" or not waits:
            yield f"{name}: renewed keys do not come, or it starts before there is one"
        if not own or sidecar.get("command", [])[2:] != [f"{ALL_TLS}/$(POD_NAME)", TLS]:
            yield f"{name}: it is not its own key that is copied"
        if shared != [m["name"] for m in container["volumeMounts"] if m["mountPath"] == TLS]:
            yield f"{name}: its key does not come to it"
    if len(pod.get("initContainers", ())) != 1:
        yield f"{name}: nobody copies its key"


def _gateway_violations(found: list[Object]) -> Iterator[str]:
    for one in found:
        if one["kind"] != "Deployment":
            continue
        container = one["spec"]["template"]["spec"]["containers"][0]
        hook = container.get("lifecycle", {}).get("preStop", {})
        if hook.get("sleep", {}).get("seconds") != 5:
            yield "gateway: it goes while connections still come"
        rolling = one["spec"].get("strategy", {}).get("rollingUpdate", {})
        if rolling.get("maxUnavailable") != 0:
            yield "gateway: a rolling update takes from its capacity"
        for probe, path in (
            ("startupProbe", "/livez"),
            ("livenessProbe", "/livez"),
            ("readinessProbe", "/readyz"),
        ):
            if container.get(probe, {}).get("httpGet", {}).get("path") != path:
                yield f"gateway: {probe} does not ask {path}"


def _cluster_violations(found: list[Object]) -> Iterator[str]:
    named = {(one["kind"], one["metadata"]["name"]): one for one in found}
    labels = named.get(("Namespace", "odradek"), {}).get("metadata", {}).get("labels", {})
    if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
        yield "the namespace does not enforce the restricted level"
    for component in ("quorum", "broker", "gateway"):
        budget = named.get(("PodDisruptionBudget", component), {}).get("spec", {})
        chosen = budget.get("selector", {}).get("matchLabels")
        if budget.get("maxUnavailable") != 1 or chosen != {NAME: component}:
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
    scaler = named.get(("HorizontalPodAutoscaler", "gateway"), {}).get("spec", {})
    resources = [m["resource"]["name"] for m in scaler.get("metrics", ()) if "resource" in m]
    if scaler.get("minReplicas", 0) < 2 or "cpu" not in resources:
        yield "the gateway does not scale"
    scaled = named.get((scaler.get("scaleTargetRef", {}).get("kind"), "gateway"), {})
    if "replicas" in scaled.get("spec", {"replicas": None}):
        yield "each apply undoes what the autoscaler scaled"
    if any(one["kind"] == "Secret" for one in found):
        yield "a secret is written down"
    for kind, name in named:
        if kind == "ConfigMap" and not re.search(r"-[a-z0-9]{10}$", name):
            yield f"{name}: a change of it would roll nothing"
