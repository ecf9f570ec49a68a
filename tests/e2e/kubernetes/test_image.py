"""The image of the services is small, and has no tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.kubernetes.conftest import Report
from tests.e2e.kubernetes.image import bytes_unpacked, paths_of
from tests.tidy.test_compiled_modules import COMPILER

BYTES_MAX = 250_000_000
TOOLS = ("pip", "pip3", "gcc", "cc", "java", "spark-submit")

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]


def test_the_image_of_the_services_is_small(image: Path, report: Report) -> None:
    size = bytes_unpacked(image)
    report(unpacked_mb=round(size / 1e6, 1), bar_mb=BYTES_MAX / 1e6)
    assert size <= BYTES_MAX


def test_the_image_of_the_services_has_the_compiled_modules(image: Path) -> None:
    libraries = [path for path in paths_of(image) if path.endswith(".so")]
    compiled = {path.rpartition("/odradek_broker/")[2].split(".")[0] for path in libraries}
    assert compiled.issuperset(module.removesuffix(".py") for module in COMPILER.MODULES)


def test_the_image_of_spark_jobs_has_java_and_the_connector(spark_image: Path) -> None:
    paths = set(paths_of(spark_image))
    assert "./usr/bin/java" in paths
    (connector,) = [path for path in paths if path.endswith("pyspark_odradek/data_source.py")]
    assert connector.startswith("./opt/odradek/lib/")


def test_the_image_of_the_services_has_no_tools(image: Path) -> None:
    names = {Path(path).name for path in paths_of(image) if "/bin/" in path}
    assert "odradek" in names
    assert names.isdisjoint(TOOLS)
