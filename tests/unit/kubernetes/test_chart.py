"""The Helm chart has the same objects as the overlays: its templates are up to date, and its values
change what they name.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools import need
from tests.unit.kubernetes.policies import violations
from tests.unit.kubernetes.rendered import ROOT, Object, objects

CHART = ROOT / "deploy" / "helm"
KUBERNETES = "1.34.0"
MONITORING = {"ServiceMonitor", "PrometheusRule"}


def rendered(*words: str, namespace: str = "odradek") -> list[Object]:
    """Return the objects that helm renders with these flags."""
    need("helm")
    command = ["helm", "template", "odradek", str(CHART), "--namespace", namespace]
    command += ["--kube-version", KUBERNETES, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def by_name(found: list[Object]) -> dict[tuple[str, str], Object]:
    """Return objects by kind and name. The order of a container's variables does not count."""
    for one in found:
        if one["kind"] in ("StatefulSet", "Deployment"):
            container = one["spec"]["template"]["spec"]["containers"][0]
            container["env"].sort(key=lambda variable: variable["name"])
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def one_of(found: list[Object], kind: str, name: str) -> Any:
    return by_name(found)[kind, name]["spec"]


def test_the_templates_are_those_of_the_overlay() -> None:
    need("kubectl")
    command = [sys.executable, str(CHART / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stale_template_is_noticed(tmp_path: Path) -> None:
    need("kubectl")
    (tmp_path / "k8s").symlink_to(ROOT / "deploy" / "k8s")
    templates = tmp_path / "helm" / "templates"
    templates.mkdir(parents=True)
    for path in (CHART / "templates").iterdir():
        (templates / path.name).write_text(path.read_text().replace("replicas", "replcas"))
    script = tmp_path / "helm" / "generate.py"
    script.write_text((CHART / "generate.py").read_text())
    command = [sys.executable, str(script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "statefulsets.yaml is stale" in done.stdout


@pytest.mark.long
def test_with_its_defaults_it_is_the_dev_overlay() -> None:
    chart, overlay = by_name(rendered()), by_name(objects("overlays/dev"))
    del overlay["Namespace", "odradek"]  # helm install --create-namespace
    assert chart == overlay


@pytest.mark.long
def test_the_values_of_production_make_the_prod_overlay_without_monitoring() -> None:
    chart = by_name(rendered("--values", str(CHART / "production.yaml")))
    overlay = by_name(objects("overlays/prod"))
    del overlay["Namespace", "odradek"]
    for kind, name in list(overlay):
        if kind in MONITORING or "dashboards" in name:
            del overlay[kind, name]
    scaler = overlay["HorizontalPodAutoscaler", "gateway"]["spec"]["metrics"]
    scaler[:] = [metric for metric in scaler if metric["type"] == "Resource"]
    assert chart == overlay


@pytest.mark.long
def test_a_domain_for_which_no_certificates_are_made_is_refused() -> None:
    """All clients, the gateways among them, would find brokers whose certificates lack their names."""
    need("helm")
    command = ["helm", "template", "odradek", str(CHART), "--kube-version", KUBERNETES]
    command += ["--set", "listeners.externalDomain=example.com"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "needs certificates.create=false" in done.stderr
    command += ["--set", "certificates.create=false"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_each_value_changes_what_it_says() -> None:
    def broker(*pairs: str) -> Any:
        words = [word for pair in pairs for word in ("--set", pair)]
        return one_of(rendered(*words), "StatefulSet", "broker")

    def variables(spec: Any) -> dict[str, str]:
        env = spec["template"]["spec"]["containers"][0]["env"]
        return {variable["name"]: variable.get("value", "") for variable in env}

    assert broker("brokers.replicas=5")["replicas"] == 5
    claim = broker("brokers.storage=7Gi", "brokers.storageClass=fast")["volumeClaimTemplates"][0]
    assert claim["spec"]["resources"]["requests"]["storage"] == "7Gi"
    assert claim["spec"]["storageClassName"] == "fast"
    container = broker("brokers.cpu=3", "brokers.memory=9Gi")["template"]["spec"]["containers"][0]
    assert container["resources"]["requests"]["cpu"] == "3"
    assert container["resources"]["limits"]["memory"] == "9Gi"
    digest = "sha256:" + "0" * 64
    image = broker(f"image.digest={digest}")["template"]["spec"]["containers"][0]["image"]
    assert image == f"odradek@{digest}"
    named = variables(broker(r"brokers.settings.log\.retention\.hours=24"))
    assert named["ODRADEK_BROKER_LOG_RETENTION_HOURS"] == "24"
    users = variables(broker("authentication.kafka=passwords"))
    assert users["ODRADEK_BROKER_SASL_ENABLED_MECHANISMS"] == "SCRAM-SHA-512"
    assert "KAFKA:SASL_SSL" in users["ODRADEK_BROKER_LISTENER_SECURITY_PROTOCOL_MAP"]
    spread = broker("zones=3")["template"]["spec"]["topologySpreadConstraints"][0]
    assert (spread["minDomains"], spread["whenUnsatisfiable"]) == (3, "DoNotSchedule")
    found = {name for _, name in by_name(rendered("--set", "certificates.create=false"))}
    assert not any("certificates" in name for name in found)
    everywhere = {one["metadata"]["namespace"] for one in rendered(namespace="elsewhere")}
    assert everywhere == {"elsewhere"}


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("--values", str(CHART / "production.yaml"))])
def test_what_it_installs_keeps_the_policies(words: tuple[str, ...]) -> None:
    """The chart does not create the namespace: the README says how to create it with the restricted
    level.
    """
    missing = "the namespace does not enforce the restricted level"
    assert violations(rendered(*words)) == [missing]
