"""Checks the Containerfiles as a builder reads them, and runs their commands without a builder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.unit.kubernetes.containerfile import Instruction, is_ignored, last_stage, read
from tests.unit.kubernetes.rendered import K8S, ROOT

FILES = (K8S / "Containerfile", K8S / "Containerfile.spark")
LOCKS = K8S / "locks"
SPARK_ONLY = {
    "numpy",
    "pandas",
    "py4j",
    "pyarrow",
    "pyspark",
    "python-dateutil",
    "pytz",
    "six",
    "tzdata",
}
ENVIRONMENT_BYTES_MAX = 125_000_000  # beside a base of 125 MB, an image of 250 MB
RUN_S_MAX = 1_200
START = """
from odradek.embedded import ClusterPlan, EmbeddedCluster
with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, gateways=1)) as cluster:
    cluster.start()
    cluster.wait_ready()
    print("all serve")
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_names_no_address_and_runs_as_a_numeric_user(path: Path) -> None:
    assert "://" not in path.read_text()
    (*_, user) = [one.text for one in last_stage(path) if one.word == "USER"]
    uid, _, gid = user.partition(":")
    assert int(uid) > 10_000
    assert int(gid) > 10_000


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_its_bases_are_arguments_or_its_own_stages(path: Path) -> None:
    assert read(path)[0].word == "ARG"
    bases, stages = [], {"scratch"}
    for one in read(path):
        if one.word == "FROM":
            base, *name = one.text.split(" AS ")
            if base not in stages:
                bases.append(base)
            stages.update(name)
    assert bases
    assert set(bases) <= {"${BASE}", "${PYTHON}"}


def test_the_bases_with_python_are_the_same_and_named_by_digest() -> None:
    """A tag may point to another image tomorrow.

    The image for Spark is based on the one that was built here.
    """
    (services,) = [one.text for one in read(FILES[0]) if one.word == "ARG"]
    assert re.fullmatch(r"BASE=python:3\.12-slim@sha256:[0-9a-f]{64}", services)
    spark = [one.text for one in read(FILES[1]) if one.word == "ARG"]
    assert services.replace("BASE", "PYTHON") in spark


def test_the_image_is_one_program_without_a_shell() -> None:
    found = {one.word: one for one in last_stage()}
    assert found["ENTRYPOINT"].listed() == ["odradek"]
    assert found["STOPSIGNAL"].text == "SIGTERM"
    assert "org.opencontainers.image.title" in found["LABEL"].text


def pins(path: Path) -> set[str]:
    lines = path.read_text().splitlines()
    return {line.split(" ")[0] for line in lines if line and not line.startswith((" ", "#"))}


def names(path: Path) -> set[str]:
    return {pin.partition("==")[0] for pin in pins(path)}


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("services", ("server", "avro")), ("spark", ("server", "avro", "arrow", "spark"))],
)
def test_an_image_has_what_is_tested_and_no_tools_of_development(
    lock: str, extras: tuple[str, ...]
) -> None:
    """It has the versions that were tested. A package that only tests and checks need would be one more to patch."""
    path = LOCKS / f"{lock}.lock"
    assert pins(path) <= pins(ROOT / "requirements.lock")
    tools = {"hatchling", "hypothesis", "mypy", "pip", "pytest", "ruff", "schemathesis", "uv"}
    assert names(path).isdisjoint(tools | {"grpcio-tools", "setuptools"})
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in extras:
        for requirement in wanted["dependencies"] + wanted["optional-dependencies"][extra]:
            assert re.split(r"[^\w-]", requirement)[0] in names(path), requirement


def test_only_the_image_of_spark_has_what_spark_needs() -> None:
    assert names(LOCKS / "services.lock").isdisjoint(SPARK_ONLY)
    assert pins(LOCKS / "spark.lock") - pins(LOCKS / "services.lock") == {
        pin for pin in pins(LOCKS / "spark.lock") if pin.partition("==")[0] in SPARK_ONLY
    }
    for path, lock in zip(FILES, ("services.lock", "spark.lock"), strict=True):
        installs = [one.text for one in read(path) if "pip" in one.text and one.word == "RUN"]
        assert any(lock in text for text in installs)
        assert all("--require-hashes" in text for text in installs if ".lock" in text)


def test_what_builds_the_wheel_is_installed_apart_from_the_image() -> None:
    """pip and the tools of the build live in /opt/build, which no later stage copies."""
    assert {"hatchling", "grpcio-tools", "mypy", "mypy-protobuf"} <= names(LOCKS / "build.lock")
    made = [one.text for one in read() if one.stage == 0 and "venv" in one.text]
    assert any("--without-pip /opt/odradek" in text for text in made)
    assert [one.text for one in last_stage() if one.word == "COPY"] == [
        "--from=system / /",
        "--from=build /opt/odradek /opt/odradek",
    ]
    (trimmed,) = [one.text for one in read() if one.stage == 1 and one.word == "RUN"]
    assert "bin/pip*" in trimmed
    assert "site-packages/*" in trimmed


def test_only_the_first_stage_has_a_compiler() -> None:
    first = [one.text for one in read() if one.stage == 0 and one.word == "RUN"]
    assert any("gcc" in text for text in first)
    assert not any("apt-get" in one.text for one in last_stage())


def test_everything_it_copies_is_there_and_reaches_the_builder() -> None:
    copied = [one for one in read() if one.word == "COPY" and "--from" not in one.text]
    assert copied
    for one in copied:
        for source in one.words()[:-1]:
            assert (ROOT / source).exists(), source
            assert not is_ignored(source), f"{source} is in .dockerignore"


def test_what_is_not_for_the_image_is_ignored() -> None:
    for path in (".git", ".venv", "tests", "deploy", "artifacts", "services/x/__pycache__"):
        assert is_ignored(path), path
    assert is_ignored("proto/python/odradek_protocol/rpc/v1/common_pb2.py")
    assert not is_ignored("services/broker/odradek_broker/process.py")


def _within(scratch: Path, text: str) -> str:
    """Return a line of the Containerfile with its absolute paths moved below `scratch`."""
    return text.replace("/opt/", f"{scratch}/opt/")


def _copy(scratch: Path, folder: Path, one: Instruction) -> None:
    *sources, target = one.words()
    for source in sources:
        if (ROOT / source).is_file():
            shutil.copy(ROOT / source, folder / target)
            continue

        def ignored(place: str, names: list[str]) -> list[str]:
            below = Path(place).relative_to(ROOT)
            return [name for name in names if is_ignored(str(below / name))]

        shutil.copytree(ROOT / source, folder / target, ignore=ignored, dirs_exist_ok=True)


@pytest.mark.long
@pytest.mark.timeout(RUN_S_MAX)
def test_its_lines_make_an_environment_in_which_the_three_commands_start(tmp_path: Path) -> None:
    """Only the first stage is run, without apt-get, because a machine that runs tests has the
    compiler.
    """
    folder = tmp_path
    environment = {**os.environ, "PATH": f"{Path(sys.base_prefix)}/bin:{os.environ['PATH']}"}
    environment.pop("ODRADEK_COMPILED_CACHE", None)  # the modules are compiled as in an image
    for one in (one for one in read() if one.stage == 0):
        if one.word == "WORKDIR":
            folder = tmp_path / one.text.lstrip("/")
            folder.mkdir(parents=True)
        elif one.word == "COPY":
            _copy(tmp_path, folder, one)
        elif one.word == "RUN" and not one.text.startswith("apt-get"):
            subprocess.run(
                ["sh", "-ec", _within(tmp_path, one.text)], cwd=folder, env=environment, check=True
            )
    programs = tmp_path / "opt" / "odradek" / "bin"
    bare = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)}
    for command in ("quorum", "broker", "gateway"):
        told = subprocess.run(
            [programs / "odradek", command, "--config", "/nowhere"],
            env=bare,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert told.returncode == 2, told.stderr
        assert "/nowhere" in told.stderr
    done = subprocess.run(
        [programs / "python", "-c", START],
        env=bare,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "all serve" in done.stdout
    files = [path for path in (tmp_path / "opt" / "odradek").rglob("*") if not path.is_symlink()]
    assert sum(path.stat().st_size for path in files if path.is_file()) <= ENVIRONMENT_BYTES_MAX
