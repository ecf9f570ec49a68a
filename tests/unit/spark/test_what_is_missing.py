"""Without a JDK, or with the wrong PySpark, a sentence says what to do; in CI the demo then
fails.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from odradek_demo.live_pipeline import LivePipeline
from pyspark_odradek.spark_session import SparkUnavailable, missing, session

JavaHome = Callable[[str], None]


@pytest.fixture
def java_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> JavaHome:
    """Return a function that makes JAVA_HOME a directory whose `java` reports this version."""

    def make(version: str) -> None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o700)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    return make


@pytest.mark.parametrize("version", ["17.0.15", "21", "21.0.1-ea"])
def test_a_jdk_that_fits_is_not_talked_about(java_home: JavaHome, version: str) -> None:
    java_home(version)
    assert missing() is None


@pytest.mark.parametrize(
    ("version", "name"), [("1.8.0_402", "Java 1"), ("11.0.2", "Java 11"), ("25", "Java 25")]
)
def test_a_jdk_that_does_not_fit_is_named(java_home: JavaHome, version: str, name: str) -> None:
    java_home(version)
    problem = missing()
    assert problem is not None
    assert f"is {name}:" in problem
    assert "install a JDK 17 or 21" in problem
    with pytest.raises(SparkUnavailable, match="JDK 17 or 21"):
        session()


def test_no_java_is_said_and_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert f"JAVA_HOME is {tmp_path}, which has no bin/java" in str(missing())
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = str(missing())
    assert "no java on PATH" in problem
    assert "apt-get install openjdk-17-jdk-headless" in problem


@pytest.mark.parametrize(
    ("package", "version", "sentence"),
    [
        ("pyspark", "4.1.1", "PySpark is 4.1.1; the connector needs 4.2 or newer"),
        ("pyspark", None, "PySpark is not installed"),
        ("pyarrow", None, "pyarrow is not installed"),
        ("pandas", "3.0.0", "pandas is 3.0.0; PySpark needs one before 3"),
    ],
)
def test_a_package_that_does_not_fit_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str | None, sentence: str
) -> None:
    real = metadata.version

    def told(name: str) -> str:
        if name != package:
            return real(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", told)
    problem = missing()
    assert problem is not None
    assert problem.startswith(sentence)
    assert problem.endswith("pip install 'odradek[spark]'")


async def test_the_demo_goes_on_without_a_jdk_and_fails_of_it_in_ci(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    pipeline = LivePipeline("127.0.0.1:1", "flights", 1, target="delays")
    await pipeline.start()
    outcome = await pipeline.finish([])
    assert outcome.skipped_because.startswith("Spark needs a JDK")
    assert outcome.is_well
    monkeypatch.setenv("CI", "true")
    assert not outcome.is_well
    assert outcome.complaint == outcome.skipped_because
    await pipeline.cancel()
