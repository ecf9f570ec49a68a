"""Fixtures: the programs and the image that these tests need, and a cluster with the dev
overlay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes import programs
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.image import built, python_base
from tests.e2e.kubernetes.installation import IMAGE, SPARK_IMAGE, Installation
from tests.tools import need
from tests.unit.kubernetes.rendered import K8S, ROOT

Report = Callable[..., None]


@pytest.fixture(scope="session")
def built_programs() -> Path:
    need("Go", "real Kubernetes")
    return programs.build()


@pytest.fixture(scope="session")
def base(built_programs: Path) -> Path:
    """Return the root file system on which images are based."""
    return python_base(built_programs.parent / "base")


@pytest.fixture(scope="session")
def image(built_programs: Path, base: Path) -> Path:
    """Return the image of the services as an archive."""
    return built(
        K8S / "Containerfile",
        IMAGE,
        context=ROOT,
        arguments={"BASE": base},
        kept=built_programs.parent / "images",
    )


@pytest.fixture(scope="session")
def spark_image(built_programs: Path, base: Path, image: Path) -> Path:
    """Return the image of Spark jobs as an archive. The base is Debian 12, which has Java 17."""
    return built(
        K8S / "Containerfile.spark",
        SPARK_IMAGE,
        context=ROOT,
        arguments={"BASE": image, "PYTHON": base, "JAVA": "openjdk-17-jre-headless"},
        kept=built_programs.parent / "images",
    )


@pytest.fixture(scope="module")
def installation(
    built_programs: Path, image: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """Yield three nodes in three zones, on which `kubectl apply -k deploy/k8s` has installed the
    cluster.
    """
    folder = tmp_path_factory.mktemp("kubernetes")
    with Cluster(folder, built_programs, [image]) as cluster:
        installation = Installation(cluster)
        installation.apply(str(K8S))
        installation.wait_installed()
        yield installation


@pytest.fixture
def report(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Report:
    """Return a function `report(pause_s=..., bar_s=...)` that prints one line of JSON, even if
    pytest captures output.
    """

    def write(**figures: object) -> None:
        with capfd.disabled():
            print("\n" + json.dumps({"test": request.node.name, **figures}), flush=True)

    return write
