"""The objects that `kubectl apply -k deploy/k8s` would apply are valid and follow the policies,
which are tested, too.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pyspark
import pytest
import yaml
from kubeflow_spark_api.models import SparkV1beta2SparkApplication

from odradek_broker.settings import BrokerSettings
from odradek_gateway.settings import GatewaySettings
from odradek_metadata_quorum.settings import QuorumProcessSettings
from odradek_runtime.settings import specs_of
from tests.unit.kubernetes.policies import violations
from tests.unit.kubernetes.rendered import (
    K8S,
    OVERLAYS,
    objects,
    pods,
    render,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
CUSTOM = ("ServiceMonitor", "PrometheusRule", "PodMonitor", "SparkApplication")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_valid(overlay: str) -> None:
    found = objects(overlay)
    assert len(found) > {"jobs": 7, "spark-operator": 8, "admin": 2}.get(overlay, 15)
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
    "fsGroup": (),
    "automountServiceAccountToken": ("StatefulSet", "Deployment", "Job", "ServiceAccount"),
    "ephemeral-storage": (),
    "memory": (),
    "image": (),
    "replicas": ("StatefulSet",),
    "ordinals": (),
    "serviceName": (),
    "whenDeleted": (),
    "whenScaled": (),
    "volumeClaimTemplates": (),
    "grpc": (),
    "fieldRef": ("StatefulSet",),
    "sleep": (),
    "rollingUpdate": (),
    "partition": (),
    "httpGet": (),
    "minReplicas": (),
    "metrics": ("HorizontalPodAutoscaler",),
    "ingress": (),
    "egress": (),
    "ports": ("NetworkPolicy",),
    "podSelector": ("NetworkPolicy",),
    "matchLabels": ("PodDisruptionBudget",),
    "policyTypes": (),
    "pod-security.kubernetes.io/enforce": (),
    "maxUnavailable": ("PodDisruptionBudget",),
    "publishNotReadyAddresses": (),
    "clusterIP": (),
    "persistentVolumeClaimRetentionPolicy": (),
    "initContainers": (),
    "restartPolicy": ("StatefulSet",),
    "command": ("StatefulSet",),
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


def test_the_policies_notice_replicas_beside_an_autoscaler() -> None:
    """Before, `kubectl apply` under load removed six of eight gateways."""
    found = objects("base")
    (gateway,) = [one for one in found if one["kind"] == "Deployment"]
    gateway["spec"]["replicas"] = 2
    assert violations(found) == ["each apply undoes what the autoscaler scaled"]


@pytest.mark.parametrize(
    ("line", "instead", "noticed"),
    [
        ("authorizer.class.name=acl", "", "everybody with a certificate may do everything"),
        (
            "super.users=User:CN=admin",
            "super.users=User:CN=admin;User:CN=gateway",
            "the super user is not the administrator alone",
        ),
    ],
)
def test_the_policies_notice_who_may_do_everything(line: str, instead: str, noticed: str) -> None:
    found = objects("base")
    (config,) = [o for o in found if "broker.properties" in o.get("data", {})]
    assert line in config["data"]["broker.properties"]
    config["data"]["broker.properties"] = config["data"]["broker.properties"].replace(line, instead)
    assert violations(found) == [noticed]


def test_the_policies_notice_a_broker_that_sees_the_keys_of_others() -> None:
    found = objects("base")
    (broker,) = [
        o for o in found if o["kind"] == "StatefulSet" and o["metadata"]["name"] == "broker"
    ]
    mounts = broker["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    mounts.append({"name": "all-tls", "mountPath": "/etc/odradek-all-tls", "readOnly": True})
    assert violations(found) == ["broker: sees the keys of other pods"]


@pytest.mark.parametrize(
    ("address", "instead", "noticed"),
    [
        (
            "2@quorum-2:9095",
            "2@quorum-2.quorum:9095",
            "QUORUM_VOTERS: quorum-2.quorum is no service of one pod",
        ),
        (
            "broker-3:9090",
            "bootstrap:9090",
            "BOOTSTRAP: bootstrap is no service of one pod",
        ),
    ],
)
def test_the_policies_notice_a_name_that_is_stale_after_a_restart(
    address: str, instead: str, noticed: str
) -> None:
    found = objects("base")
    (config,) = [one for one in found if "QUORUM_VOTERS" in one.get("data", {})]
    changed = {key: value.replace(address, instead) for key, value in config["data"].items()}
    assert changed != config["data"]
    config["data"] = changed
    assert violations(found) == [noticed]


@pytest.mark.parametrize(
    ("listener", "instead", "noticed"),
    [
        (
            "REPLICATION://$(POD_IP)",
            "REPLICATION://$(POD_NAME).$(POD_NAMESPACE).svc",
            "broker: other brokers look up its name, which may be a stale one",
        ),
        (
            "KAFKA://$(POD_NAME)",
            "KAFKA://$(POD_NAME).broker",
            "broker: clients dial a name that is stale after each restart",
        ),
    ],
)
def test_the_policies_notice_an_advertised_name_that_is_stale_after_a_restart(
    listener: str, instead: str, noticed: str
) -> None:
    found = objects("base")
    (broker,) = [
        o for o in found if o["kind"] == "StatefulSet" and o["metadata"]["name"] == "broker"
    ]
    environment = broker["spec"]["template"]["spec"]["containers"][0]["env"]
    (advertised,) = [one for one in environment if one["name"].endswith("ADVERTISED_LISTENERS")]
    assert listener in advertised["value"]
    advertised["value"] = advertised["value"].replace(listener, instead)
    assert violations(found) == [noticed]


def test_the_policies_notice_a_variable_that_refers_to_a_later_one() -> None:
    """Brokers would advertise `$(POD_NAME)` literally."""
    found = objects("overlays/prod")
    (broker,) = [
        o for o in found if o["kind"] == "StatefulSet" and o["metadata"]["name"] == "broker"
    ]
    environment = broker["spec"]["template"]["spec"]["containers"][0]["env"]
    environment.sort(key=lambda one: not one["name"].endswith("ADVERTISED_LISTENERS"))
    name = "ODRADEK_BROKER_ADVERTISED_LISTENERS"
    assert violations(found) == [
        f"broker: {name} refers to {used}, which comes later"
        for used in ("POD_NAME", "POD_NAME", "POD_IP")
    ]


@pytest.mark.parametrize(
    ("secret", "noticed"),
    [
        ("odradek-admin-tls", "Deployment/gateway: holds the super user's key"),
        ("odradek-ca", "Deployment/gateway: holds the authority's key"),
    ],
)
def test_the_policies_notice_a_key_in_the_wrong_pod(secret: str, noticed: str) -> None:
    found = objects("base")
    (gateway,) = [one for one in found if one["kind"] == "Deployment"]
    volumes = gateway["spec"]["template"]["spec"]["volumes"]
    volumes.append({"name": "more", "secret": {"secretName": secret}})
    assert violations(found) == [noticed]


def _places(node: Any, field: str) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if field in node:
            yield node
        for child in list(node.values()):
            yield from _places(child, field)
    elif isinstance(node, list):
        for child in node:
            yield from _places(child, field)


def test_production_takes_a_host_and_a_zone_for_each_pod() -> None:
    for one in objects("overlays/prod"):
        if one["kind"] != "StatefulSet":
            continue
        pod = one["spec"]["template"]["spec"]
        (rule,) = pod["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert rule["labelSelector"]["matchLabels"] == one["spec"]["selector"]["matchLabels"]
        (spread,) = pod["topologySpreadConstraints"]
        assert spread["minDomains"] == 3
        assert spread["whenUnsatisfiable"] == "DoNotSchedule"


def test_production_gives_each_broker_an_address_and_is_monitored() -> None:
    found = objects("overlays/prod")
    kinds = [one["kind"] for one in found]
    assert kinds.count("ServiceMonitor") == 3
    assert kinds.count("PrometheusRule") == 1
    dashboards = [one for one in found if one["kind"] == "ConfigMap" and "dashboards" in str(one)]
    assert dashboards[0]["metadata"]["labels"]["grafana_dashboard"] == "1"
    external = {
        one["spec"]["selector"]["statefulset.kubernetes.io/pod-name"]
        for one in found
        if one["kind"] == "Service" and one["spec"].get("type") == "LoadBalancer"
    }
    assert external == {"broker-1", "broker-2", "broker-3"}
    (broker,) = [
        one for one in found if one["kind"] == "StatefulSet" and one["metadata"]["name"] == "broker"
    ]
    told = {
        one["name"]: one.get("value")
        for one in broker["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert "GRPC://$(POD_NAME).odradek.example.com" in told["ODRADEK_BROKER_ADVERTISED_LISTENERS"]
    (scaler,) = [one for one in found if one["kind"] == "HorizontalPodAutoscaler"]
    assert [one["type"] for one in scaler["spec"]["metrics"]] == ["Resource", "Pods"]


def test_the_spark_application_is_what_the_operator_knows() -> None:
    (found,) = [one for one in objects("spark-operator") if one["kind"] == "SparkApplication"]
    read = SparkV1beta2SparkApplication.from_dict(copy.deepcopy(found))
    assert read is not None
    assert read.to_dict() == found, "a field that is not the operator's"
    spec = found["spec"]
    (scripts,) = [
        one
        for one in objects("spark-operator")
        if one["kind"] == "ConfigMap" and "count_by_key.py" in one["data"]
    ]
    names = {v["name"]: v.get("configMap", {}).get("name") for v in spec["volumes"]}
    assert names["job"] == scripts["metadata"]["name"]
    assert spec["mainApplicationFile"].rpartition("/")[2] in scripts["data"]
    assert spec["sparkVersion"] == pyspark.__version__
    for role in ("driver", "executor"):
        assert {m["name"] for m in spec[role]["volumeMounts"]} == set(names)
        assert spec[role]["podSecurityContext"]["runAsNonRoot"] is True


def test_a_misspelt_field_of_a_spark_application_is_noticed() -> None:
    (found,) = [one for one in objects("spark-operator") if one["kind"] == "SparkApplication"]
    found["spec"]["driver"]["memmory"] = "1g"
    read = SparkV1beta2SparkApplication.from_dict(copy.deepcopy(found))
    assert read is not None
    assert read.to_dict() != found


def test_spark_starts_no_process_for_each_processor_of_the_node() -> None:
    """A Job has no limit of processors, and each Python process of Spark takes a part of its memory."""
    for name, template in pods(objects("jobs")):
        (container,) = template["spec"]["containers"]
        given = {one["name"]: one["value"] for one in container["env"]}
        assert given["MASTER"] == "local[2]", name


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


def test_rendered_yaml_has_no_duplicate_objects() -> None:
    for overlay in OVERLAYS:
        names = [
            (o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"])
            for o in yaml.safe_load_all(render(overlay))
            if o
        ]
        assert len(names) == len(set(names))
