"""What a kubelet would start for a rendered pod template: command, environment, mounts, probes,
grace period.

It supports only the fields that the manifests use, and raises on any other, so that a new field in
a manifest cannot be ignored silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.unit.kubernetes.containerfile import last_stage
from tests.unit.kubernetes.rendered import Object

_POD_FIELDS = {
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "enableServiceLinks",
    "initContainers",
    "restartPolicy",
    "securityContext",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
    "topologySpreadConstraints",
    "volumes",
}
_CONTAINER_FIELDS = {
    "args",
    "command",
    "env",
    "image",
    "lifecycle",
    "livenessProbe",
    "name",
    "ports",
    "readinessProbe",
    "resources",
    "securityContext",
    "startupProbe",
    "volumeMounts",
}
_SIDECAR_FIELDS = {
    "command",
    "env",
    "image",
    "name",
    "resources",
    "restartPolicy",
    "securityContext",
    "startupProbe",
    "volumeMounts",
}
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A probe of the kubelet: gRPC for a `service`, or HTTP for a `path`."""

    port: int
    service: str | None
    scheme: str
    path: str | None
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A volume and the path at which a container mounts it.

    Exactly one source is set: text files, the name of a claim, or the name of an empty directory.
    The containers of a pod that name the same empty directory share it.
    """

    path: str
    read_only: bool
    files: Mapping[str, bytes] | None = None
    claim: str | None = None
    shared: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """All that is needed to start one pod at `address`."""

    name: str
    labels: Mapping[str, str]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...]
    user: int
    group: int
    read_only_root: bool
    grace_s: float
    pre_stop_s: float
    preparations: tuple[str, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    probes: Mapping[str, Probe] = field(default_factory=dict)
    sidecars: tuple[PodPlan, ...] = ()
    starts_when: tuple[tuple[str, ...], ...] = ()
    """Commands of the sidecars' startup probes: all must succeed before the container starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The settings of the Containerfile's last stage for a process; `preparations` are its RUN
    lines.
    """

    entrypoint: tuple[str, ...]
    environment: Mapping[str, str]
    preparations: tuple[str, ...]

    @staticmethod
    def read() -> Image:
        stage = last_stage()
        (entrypoint,) = [one.listed() for one in stage if one.word == "ENTRYPOINT"]
        variables = [word for one in stage if one.word == "ENV" for word in one.text.split()]
        pairs = dict(pair.split("=", 1) for pair in variables)
        pairs.pop("PATH")  # the virtual environment that the tests run in stands for the image's
        return Image(
            entrypoint=tuple(entrypoint),
            environment=pairs,
            preparations=tuple(one.text for one in stage if one.word == "RUN"),
        )


class Planner:
    """Resolves pod templates against the rendered ConfigMaps and the cluster's Secrets."""

    def __init__(self, found: Iterable[Object], secrets: Mapping[str, Mapping[str, bytes]]) -> None:
        """`secrets` may be filled later, because it is read when a pod is planned."""
        self._config_maps = {
            one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "ConfigMap"
        }
        self._secrets = secrets
        self._image = Image.read()

    def plan(
        self,
        owner: Object,
        name: str,
        *,
        ordinal: int | None = None,
        zone: str = "",
        address: str,
    ) -> PodPlan:
        """Return the plan of the pod `name` of a workload object at `address`."""
        template = owner["spec"]["template"]
        spec = template["spec"]
        _only_known(spec, _POD_FIELDS, name)
        (container,) = spec["containers"]
        _only_known(container, _CONTAINER_FIELDS, name)
        labels = dict(template["metadata"]["labels"])
        if ordinal is not None:
            labels["apps.kubernetes.io/pod-index"] = str(ordinal)
            labels["statefulset.kubernetes.io/pod-name"] = name
        if zone:
            labels["topology.kubernetes.io/zone"] = zone
        fields = {
            "metadata.name": name,
            "metadata.namespace": owner["metadata"]["namespace"],
            "status.podIP": address,
            **{f"metadata.labels['{key}']": value for key, value in labels.items()},
        }
        environment = self._environment(container, fields)
        sidecars = spec.get("initContainers", ())
        command = tuple(container.get("command", self._image.entrypoint))
        arguments = tuple(container.get("args", ()))
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        own = container["securityContext"]
        stop = container.get("lifecycle", {}).get("preStop", {})
        return PodPlan(
            name=name,
            labels=labels,
            command=tuple(_expanded(word, environment) for word in command + arguments),
            environment=environment,
            mounts=tuple(self._mounts(owner, spec, container, name)),
            user=spec["securityContext"]["runAsUser"],
            group=spec["securityContext"]["runAsGroup"],
            read_only_root=own["readOnlyRootFilesystem"],
            grace_s=spec.get("terminationGracePeriodSeconds", 30),
            pre_stop_s=stop["sleep"]["seconds"] if stop else 0,
            sidecars=tuple(self._sidecar(owner, one, name, fields) for one in sidecars),
            starts_when=tuple(tuple(one["startupProbe"]["exec"]["command"]) for one in sidecars),
            preparations=self._image.preparations,
            ports=ports,
            probes={
                kind: _probe(container[f"{kind}Probe"], ports)
                for kind in ("startup", "liveness", "readiness")
                if f"{kind}Probe" in container
            },
        )

    def _environment(self, container: Object, fields: Mapping[str, str]) -> dict[str, str]:
        environment = dict(self._image.environment)
        for variable in container.get("env", ()):
            environment[variable["name"]] = self._value(variable, fields, environment)
        return environment

    def _sidecar(
        self, owner: Object, container: Object, pod: str, fields: Mapping[str, str]
    ) -> PodPlan:
        """Return the plan of a container that starts before the pod's other containers and ends
        after them.
        """
        _only_known(container, _SIDECAR_FIELDS, pod)
        assert container["restartPolicy"] == "Always", f"{pod}: only sidecars are simulated"
        spec = owner["spec"]["template"]["spec"]
        environment = self._environment(container, fields)
        return PodPlan(
            name=f"{pod}.{container['name']}",
            labels={},
            command=tuple(_expanded(word, environment) for word in container["command"]),
            environment=environment,
            mounts=tuple(self._mounts(owner, spec, container, pod)),
            user=spec["securityContext"]["runAsUser"],
            group=spec["securityContext"]["runAsGroup"],
            read_only_root=container["securityContext"]["readOnlyRootFilesystem"],
            grace_s=0,
            pre_stop_s=0,
            preparations=self._image.preparations,
        )

    def _value(self, variable: Object, fields: Mapping[str, str], before: Mapping[str, str]) -> str:
        if "value" in variable:
            return _expanded(variable["value"], before)
        (kind, source), *more = variable["valueFrom"].items()
        assert not more, variable
        if kind == "fieldRef":
            path = source["fieldPath"]
            # A label that the pod does not have is an empty string, any other field must be known.
            return fields.get(path, "") if path.startswith("metadata.labels[") else fields[path]
        if kind == "configMapKeyRef":
            text: str = self._config_maps[source["name"]][source["key"]]
            return text
        assert kind == "secretKeyRef", f"{variable}: the simulation does not know {kind}"
        return self._secrets[source["name"]][source["key"]].decode()

    def _mounts(self, owner: Object, spec: Object, container: Object, pod: str) -> Iterable[Mount]:
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        claims = {one["metadata"]["name"] for one in owner["spec"].get("volumeClaimTemplates", ())}
        for mount in container.get("volumeMounts", ()):
            assert "subPath" not in mount, "files below a subPath are never renewed"
            read_only = mount.get("readOnly", False)
            name, path = mount["name"], mount["mountPath"]
            if name in claims:
                yield Mount(path=path, read_only=read_only, claim=f"{name}-{pod}")
                continue
            volume = {key: value for key, value in volumes[name].items() if key != "name"}
            (kind, source), *more = volume.items()
            assert not more, volume
            if kind == "emptyDir":
                yield Mount(path=path, read_only=read_only, shared=name)
            elif kind == "configMap":
                texts = self._config_maps[source["name"]]
                files = {key: text.encode() for key, text in texts.items()}
                yield Mount(path=path, read_only=read_only, files=files)
            elif kind == "secret":
                files = dict(self._secrets[source["secretName"]])
                yield Mount(path=path, read_only=read_only, files=files)
            else:
                assert kind == "projected", f"{volume}: the simulation does not know {kind}"
                files = self._projected(source["sources"])
                yield Mount(path=path, read_only=read_only, files=files)

    def _projected(self, sources: Iterable[Object]) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for source in sources:
            secret = source["secret"]
            if secret["name"] not in self._secrets and secret.get("optional"):
                continue
            content = self._secrets[secret["name"]]
            for item in secret["items"]:
                files[item["path"]] = content[item["key"]]
        return files


def _only_known(holder: Object, known: set[str], name: str) -> None:
    strange = holder.keys() - known
    assert not strange, f"{name}: the simulation does not know {strange}"


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """Expand `$(NAME)` as Kubernetes does: unknown names stay as they are."""
    return _REFERENCE.sub(lambda found: environment.get(found[1], found[0]), text)


def _probe(probe: Object, ports: Mapping[str, int]) -> Probe:
    timeout_s = float(probe.get("timeoutSeconds", 1))
    if "grpc" in probe:
        asked: Any = probe["grpc"]
        return Probe(
            port=asked["port"],
            service=asked["service"],
            scheme="",
            path=None,
            timeout_s=timeout_s,
        )
    asked = probe["httpGet"]
    port = ports.get(asked["port"], asked["port"])
    scheme = asked.get("scheme", "HTTP").lower()
    return Probe(port=port, service=None, scheme=scheme, path=asked["path"], timeout_s=timeout_s)
