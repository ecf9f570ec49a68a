"""What `kubectl apply -k deploy/k8s` would apply: valid, and within the policies, which themselves are tested."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml

from odradek_broker.settings import BrokerSettings
from odradek_gateway.settings import GatewaySettings
from odradek_metadata_quorum.settings import QuorumProcessSettings
from odradek_runtime.settings import specs_of
from tests.unit.kubernetes.rendered import (
    K8S,
    OVERLAYS,
    ROOT,
    has_kubectl,
    objects,
    render,
    violations,
)

pytestmark = [
    pytest.mark.skipif(
        not has_kubectl() and not os.environ.get("CI"), reason="kubectl is not installed"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
CUSTOM = ("ServiceMonitor", "PrometheusRule", "PodMonitor", "SparkApplication")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_valid(overlay: str) -> None:
    found = objects(overlay)
    assert len(found) > 15
    for one in found:
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, "1.32", strict=True)


@pytest.mark.parametrize("overlay", [".", "overlays/dev", "overlays/prod"])
def test_every_object_keeps_the_policies(overlay: str) -> None:
    assert violations(objects(overlay)) == []


def test_a_misspelt_field_is_noticed() -> None:
    one = next(o for o in objects("base") if o["kind"] == "StatefulSet")
    container = one["spec"]["template"]["spec"]["containers"][0]
    container["livenessProbe"]["failureTreshold"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one, "1.32", strict=True)


PROTECTED = {  # field: kinds of objects in which every place of it matters
    "runAsNonRoot": (),
    "runAsUser": (),
    "runAsGroup": (),
    "seccompProfile": (),
    "serviceAccountName": (),
    "enableServiceLinks": (),
    "sizeLimit": (),
    "allowPrivilegeEscalation": (),
    "readOnlyRootFilesystem": (),
    "capabilities": (),
    "startupProbe": (),
    "livenessProbe": (),
    "readinessProbe": (),
    "topologySpreadConstraints": (),
    "podAntiAffinity": (),
    "preStop": (),
    "podManagementPolicy": (),
    "terminationGracePeriodSeconds": ("StatefulSet",),
    "fsGroupChangePolicy": (),
    "maxUnavailable": ("PodDisruptionBudget",),
    "publishNotReadyAddresses": (),
    "clusterIP": (),
    "persistentVolumeClaimRetentionPolicy": (),
}


@pytest.mark.parametrize("field", PROTECTED)
def test_the_policies_notice_a_field_that_is_gone(field: str) -> None:
    found = objects("base")
    kinds = PROTECTED[field]
    chosen = [one for one in found if not kinds or one["kind"] in kinds]
    places = list(_places(chosen, field))
    assert places, f"{field} stands nowhere: the policy for it looks at nothing"
    for holder in places:
        kept = holder.pop(field)
        assert violations(found), f"nobody misses {field} = {kept}"
        holder[field] = kept
    assert violations(found) == []


def _places(node: Any, field: str) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if field in node:
            yield node
        for child in list(node.values()):
            yield from _places(child, field)
    elif isinstance(node, list):
        for child in node:
            yield from _places(child, field)


def test_objects_are_copies() -> None:
    first = objects("base")
    copy.deepcopy(first)
    first[0]["kind"] = "changed"
    assert objects("base")[0]["kind"] != "changed"


@pytest.mark.parametrize(
    ("name", "settings", "prefix"),
    [
        ("quorum", QuorumProcessSettings, "ODRADEK_QUORUM_"),
        ("broker", BrokerSettings, "ODRADEK_BROKER_"),
        ("gateway", GatewaySettings, "ODRADEK_GATEWAY_"),
    ],
)
@pytest.mark.parametrize("overlay", ["overlays/dev", "overlays/prod"])
def test_every_setting_that_the_manifests_give_exists(
    name: str, settings: type[Any], prefix: str, overlay: str
) -> None:
    known = set(specs_of(settings))
    for line in (K8S / "base" / f"{name}.properties").read_text().splitlines():
        if line and not line.startswith("#"):
            assert line.partition("=")[0] in known, f"{name}.properties: {line}"
    variables = set(re.findall(rf"name: ({prefix}[A-Z_]+)", render(overlay)))
    assert variables
    forms = {prefix + one.upper().replace(".", "_").replace("-", "_") for one in known}
    assert variables <= forms


def test_a_change_of_a_setting_rolls_the_pods() -> None:
    names = re.findall(r"name: (broker-config-[a-z0-9]+)", render("base"))
    assert len(set(names)) == 1
    assert len(names) >= 2


class TestContainerfile:
    lines = (K8S / "Containerfile").read_text().splitlines()

    def test_it_runs_as_a_numeric_user_and_names_no_address(self) -> None:
        assert "USER 10100:10100" in self.lines
        assert not any("://" in line for line in self.lines)
        assert "STOPSIGNAL SIGTERM" in self.lines

    def test_everything_it_copies_is_there_and_not_ignored(self) -> None:
        ignored = (ROOT / ".dockerignore").read_text().splitlines()
        kept = {line[1:] for line in ignored if line.startswith("!")}
        for line in self.lines:
            if line.startswith("COPY ") and "--from" not in line:
                for source in line.split()[1:-1]:
                    assert (ROOT / source).exists(), source
                    assert source in kept, f"{source} is ignored by .dockerignore"

    def test_only_its_first_stage_installs_a_compiler(self) -> None:
        stages = "\n".join(self.lines).split("FROM ${BASE}")
        assert "gcc" in stages[1]
        assert "gcc" not in stages[2]


def test_rendered_yaml_has_no_duplicate_objects() -> None:
    for overlay in OVERLAYS:
        names = [
            (o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"])
            for o in yaml.safe_load_all(render(overlay))
            if o
        ]
        assert len(names) == len(set(names))
