"""The manifests as `kubectl kustomize` renders them."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.tools import need

ROOT = Path(__file__).parents[3]
K8S = ROOT / "deploy" / "k8s"
OVERLAYS = (".", "base", "overlays/dev", "overlays/prod", "jobs", "spark-operator", "admin")
Object = dict[str, Any]


@functools.cache
def render(overlay: str) -> str:
    """Return the overlay as kubectl renders it; skip the test if there is no kubectl."""
    need("kubectl")
    done = subprocess.run(
        ["kubectl", "kustomize", str(K8S / overlay)], capture_output=True, text=True, check=True
    )
    return done.stdout


def objects(overlay: str) -> list[Object]:
    """Return new copies of the objects, which a test may change."""
    return [one for one in yaml.safe_load_all(render(overlay)) if one]


def pods(found: list[Object]) -> Iterator[tuple[str, Object]]:
    """Yield (kind/name, pod template) of all objects that create pods."""
    for one in found:
        if one["kind"] in ("StatefulSet", "Deployment", "Job"):
            yield f"{one['kind']}/{one['metadata']['name']}", one["spec"]["template"]
        if one["kind"] == "CronJob":
            template = one["spec"]["jobTemplate"]["spec"]["template"]
            yield f"CronJob/{one['metadata']['name']}", template
