"""Memory limits allow all that the settings let a process use, and the dev overlay fits on a small
node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odradek_broker.settings import BrokerSettings
from odradek_gateway.settings import GatewaySettings
from odradek_metadata_quorum.settings import QuorumSettings
from odradek_runtime.program import KEPT_BYTES_MAX
from odradek_runtime.settings import specs_of
from tests.unit.kubernetes.rendered import OVERLAYS, Object, objects, pods

MIB = 1 << 20
UNITS = {"Ki": 1 << 10, "Mi": MIB, "Gi": 1 << 30}
IDLE_BYTES = 112 * MIB  # measured: a broker without load has 99 MiB, a gateway 88 MiB
IDLE_CONTROLLER_BYTES = 56 * MIB  # measured: 43 MiB
BODY_COPIES = 3  # decoded and batched for the brokers, a body takes about three times its size
CATCH_UP_CREDIT = (
    1.25  # a stream for partitions that are far behind has a quarter of the credit, in addition
)


def amount(text: str) -> float:
    """Return a Kubernetes quantity as a number of CPUs or bytes."""
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * factor
    return int(text.removesuffix("m")) / 1000 if text.endswith("m") else float(text)


def settings_of(found: list[Object], name: str, specs: dict[str, Any]) -> Callable[[str], int]:
    """Return a function that reads a number from the settings of a pod's process."""
    (template,) = [template for kind, template in pods(found) if kind.rpartition("/")[2] == name]
    variables = {one["name"]: one.get("value") for one in template["spec"]["containers"][0]["env"]}
    (lines,) = [
        one["data"][f"{name}.properties"].splitlines()
        for one in found
        if one["kind"] == "ConfigMap" and f"{name}.properties" in one["data"]
    ]
    file = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))

    def value(setting: str) -> int:
        variable = f"ODRADEK_{name.upper()}_{setting.upper().replace('.', '_')}"
        default = specs[setting][0].default
        return int(variables.get(variable) or file.get(setting) or default)

    return value


def limit_of(found: list[Object], name: str) -> float:
    (template,) = [template for kind, template in pods(found) if kind.rpartition("/")[2] == name]
    return amount(template["spec"]["containers"][0]["resources"]["limits"]["memory"])


def bounded_bytes(found: list[Object], name: str) -> float:
    """Return how many bytes an idle process uses, and how many its settings let clients and peers
    add.
    """
    if name == "broker":
        value = settings_of(found, name, specs_of(BrokerSettings))
        arriving_and_decoded = 2 * value("queued.max.request.bytes")
        peers = 2
        received = CATCH_UP_CREDIT * peers * value("replica.credit.bytes")
        sent = peers * value("replica.fetch.response.max.bytes") + value("fetch.max.bytes")
        return IDLE_BYTES + arriving_and_decoded + received + sent + KEPT_BYTES_MAX
    if name == "gateway":
        value = settings_of(found, name, specs_of(GatewaySettings))
        return IDLE_BYTES + BODY_COPIES * value("request.bodies.bytes.max")
    pending, entries, queues = (
        QuorumSettings.__dataclass_fields__[field].default
        for field in ("pending_bytes_max", "snapshot_entries_bytes_max", "peer_queue_bytes_max")
    )
    return IDLE_CONTROLLER_BYTES + pending + entries + 2 * queues


@pytest.mark.parametrize("name", ["quorum", "broker", "gateway"])
@pytest.mark.parametrize("overlay", ["base", "overlays/dev", "overlays/prod"])
def test_a_memory_limit_holds_what_the_settings_allow(overlay: str, name: str) -> None:
    found = objects(overlay)
    assert bounded_bytes(found, name) <= limit_of(found, name)


def test_a_setting_of_the_environment_counts() -> None:
    found = objects("overlays/dev")
    value = settings_of(found, "broker", specs_of(BrokerSettings))
    assert value("queued.max.request.bytes") == 32 * MIB
    assert (
        settings_of(objects("base"), "broker", specs_of(BrokerSettings))("queued.max.request.bytes")
        == 256 * MIB
    )


def requested(found: list[Object], resource: str) -> float:
    """Return what all pods request together: with jobs, the largest number of gateways, and those
    that a rolling update adds.
    """
    (scaler,) = [one for one in found if one["kind"] == "HorizontalPodAutoscaler"]
    total = 0.0
    for one in found:
        if one["kind"] not in ("StatefulSet", "Deployment", "Job"):
            continue
        replicas = one["spec"].get("replicas", 1)
        if one["kind"] == "Deployment":
            surge = one["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
            replicas = scaler["spec"]["maxReplicas"] + surge
        spec = one["spec"]["template"]["spec"]
        containers = [*spec["containers"], *spec.get("initContainers", ())]
        total += replicas * sum(amount(c["resources"]["requests"][resource]) for c in containers)
    return total


def test_the_dev_overlay_fits_on_one_node_with_two_processors_and_4_gib() -> None:
    """The node's own pods (control plane, DNS, network) take up to 0.95 of a processor and 0.4 GiB of memory."""
    found = objects(".")
    assert requested(found, "cpu") <= 2 - 0.95
    assert requested(found, "memory") <= 4096 * MIB - 410 * MIB


def refused_by_a_quota(found: list[Object]) -> list[str]:
    """Return the containers that lack a request or a limit: a ResourceQuota refuses their pods."""
    needed = {
        (kind, resource)
        for kind in ("requests", "limits")
        for resource in ("cpu", "memory", "ephemeral-storage")
    } - {("limits", "cpu")}
    return [
        f"{name}: {container['name']}"
        for name, template in pods(found)
        for container in (
            *template["spec"]["containers"],
            *template["spec"].get("initContainers", ()),
        )
        if any(
            resource not in container.get("resources", {}).get(kind, {})
            for kind, resource in needed
        )
    ]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_resource_quota_admits_every_pod(overlay: str) -> None:
    found = objects(overlay)
    assert list(pods(found))
    assert refused_by_a_quota(found) == []


def test_a_container_that_a_resource_quota_refuses_is_noticed() -> None:
    found = objects("admin")
    (template,) = [template for _, template in pods(found)]
    del template["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert refused_by_a_quota(found) == ["Job/admin: admin"]
