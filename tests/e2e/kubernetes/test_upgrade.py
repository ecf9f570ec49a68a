"""The first release is upgraded under acks=all load: its manifests, then its image, back and forth. No record is lost.

DNS caches for 30 s, so the names that the first release's manifests gave to pods are stale while pods restart.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.faults.first_release import COMMIT
from tests.e2e.kubernetes.cluster import Cluster, wait_until
from tests.e2e.kubernetes.conftest import Report
from tests.e2e.kubernetes.image import built
from tests.e2e.kubernetes.installation import IMAGE, WORKLOADS, Installation
from tests.unit.kubernetes.rendered import K8S, ROOT

PAUSE_S_MAX = 1.0
CLIENT_NODE = 1  # CoreDNS runs on this node, too
OLD_IMAGE = "odradek:first"
CERTIFICATES = "app.kubernetes.io/component=certificates"
BROKERS = ("broker-1", "broker-2", "broker-3")
pytestmark = [pytest.mark.long, pytest.mark.timeout(3_000)]


@pytest.fixture(scope="module")
def first_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source tree of the first release."""
    place = tmp_path_factory.mktemp("first-release")
    words = ["git", "-C", str(ROOT), "archive", COMMIT]
    archive = subprocess.run(words, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"commit {COMMIT} is not in this clone: {archive.stderr.decode()}")
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive.stdout, check=True)
    return place


@pytest.fixture(scope="module")
def first_installation(
    built_programs: Path,
    base: Path,
    image: Path,
    first_release: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installation]:
    """Yield three nodes on which the first release is installed from its own manifests."""
    old_image = built(
        first_release / "deploy" / "k8s" / "Containerfile",
        OLD_IMAGE,
        context=first_release,
        arguments={"BASE": base},
        kept=image.parent,
    )
    overlay = tmp_path_factory.mktemp("overlay")
    name, tag = OLD_IMAGE.split(":")
    kustomization = {
        "resources": [os.path.relpath(first_release / "deploy" / "k8s", overlay.resolve())],
        "images": [{"name": name, "newTag": tag}],
    }
    (overlay / "kustomization.yaml").write_text(json.dumps(kustomization))
    folder = tmp_path_factory.mktemp("kubernetes")
    with Cluster(folder, built_programs, [image, old_image]) as cluster:
        installation = Installation(cluster)
        installation.apply(str(overlay))
        installation.wait_installed()
        yield installation


def renew_certificates(installation: Installation) -> None:
    """Make certificates with the names of the new manifests, and wait until the pods see them."""
    rendered = installation.cluster.kubectl("kustomize", str(K8S))
    installation.kubectl("delete", "job", "--all")
    installation.cluster.kubectl("apply", "-f", "-", "-l", CERTIFICATES, stdin=rendered)
    complete = ("--for=condition=Complete", "job/make-certificates", "--timeout=300s")
    installation.kubectl("wait", *complete)
    for broker in BROKERS:
        made = 'go-template={{index .data "tls.crt" | base64decode}}'
        wanted = installation.kubectl("get", "secret", f"odradek-{broker}-tls", "-o", made)
        seen = ("exec", broker, "--", "cat", f"/etc/odradek-tls/{broker}/tls.crt")
        wait_until(lambda: installation.kubectl(*seen) == wanted, f"{broker} sees its certificate")  # noqa: B023


def set_image(installation: Installation, workload: str, image: str) -> None:
    installation.kubectl("set", "image", workload, f"*={image}")
    installation.wait_rolled(workload)


def test_the_first_release_is_upgraded_and_brought_back_under_load(
    first_installation: Installation, report: Report
) -> None:
    installation = first_installation
    renew_certificates(installation)
    pauses_s: dict[str, float] = {}
    with installation.load(node=CLIENT_NODE) as load:
        load.gap_s()
        installation.kubectl("delete", "job", "--all")
        installation.apply(str(K8S))
        installation.wait_installed()
        pauses_s["manifests and image"] = load.gap_s()
        for workload in reversed(WORKLOADS):
            set_image(installation, workload, OLD_IMAGE)
            pauses_s[f"{workload} back"] = load.gap_s()
        for workload in WORKLOADS:
            set_image(installation, workload, IMAGE)
            pauses_s[f"{workload} forth"] = load.gap_s()
    report(pauses_s=pauses_s, bar_s=PAUSE_S_MAX)
    assert max(pauses_s.values()) <= PAUSE_S_MAX
