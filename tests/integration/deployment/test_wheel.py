"""The wheel in a clean environment: what `pip install odradek` and `odradek[server]` give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PIP_S_MAX = 300

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the tree, with the build requirements that are installed."""
    folder = tmp_path_factory.mktemp("wheel")
    _run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
        "--wheel-dir", str(folder), str(ROOT),
    )  # fmt: skip
    (built,) = folder.glob("odradek-*.whl")
    return built


class CleanEnvironment:
    """A virtual environment with nothing in it but what was asked for."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "env", with_pip=True)
        self.folder = folder
        self.bin = folder / "env" / "bin"
        self.constraints = folder / "constraints.txt"
        pins = [
            line.split(" \\")[0]
            for line in (ROOT / "requirements.lock").read_text().splitlines()
            if line and not line.startswith((" ", "#"))
        ]
        self.constraints.write_text("\n".join(pins) + "\n")

    def install(self, requirement: str) -> None:
        self.run(
            "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--constraint", str(self.constraints), requirement,
        )  # fmt: skip

    def run(self, program: str, *arguments: str, stdin: str = "") -> str:
        return _run(str(self.bin / program), *arguments, cwd=self.folder, stdin=stdin)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    clean = CleanEnvironment(tmp_path_factory.mktemp("clean"))
    clean.install(str(wheel))
    return clean


@pytest.fixture(scope="module")
def cluster(environment: CleanEnvironment, wheel: Path) -> Iterator[dict[str, object]]:
    """What `odradek dev --json` prints, of the wheel with its server extra."""
    environment.install(f"odradek[server] @ file://{wheel}")
    command = [
        str(environment.bin / "odradek"), "dev", "--json", "--brokers", "1", "--controllers", "1",
        "--data-dir", str(environment.folder / "data"), "--base-port", "0", "--exit-with-parent",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=environment.folder
    ) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline() or b"{}")
        process.communicate()  # the end of its input ends it


def test_the_wheel_has_the_codec_the_generated_code_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(n.startswith("odradek_protocol/records/_codec.") for n in names)
    assert "odradek_protocol/rpc/v1/broker_service_pb2_grpc.py" in names
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert "odradek/py.typed" in names
    assert not [n for n in names if n.startswith("tests/")]
    packages = {n.split("/")[0] for n in names if not n.split("/")[0].endswith(".dist-info")}
    assert packages == {
        "odradek",
        "odradek_broker",
        "odradek_demo",
        "odradek_gateway",
        "odradek_metadata_quorum",
        "odradek_pipelines",
        "odradek_protocol",
        "odradek_runtime",
        "pyspark_odradek",
    }


def test_the_sdk_alone_says_what_a_cluster_needs(environment: CleanEnvironment) -> None:
    assert "odradek" in environment.run("odradek", "--version")
    environment.run("python", "-c", "import odradek, odradek.sync, odradek.serializers")
    refused = subprocess.run(
        [environment.bin / "odradek", "dev", "--json"],
        cwd=environment.folder, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert refused.returncode != 0
    assert "odradek[server]" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_cluster_of_the_wheel_takes_and_gives_a_record(
    environment: CleanEnvironment, cluster: dict[str, object]
) -> None:
    bootstrap = ("--bootstrap", str(cluster["grpc"]))
    environment.run("odradek", "topic", "create", "t", "--partitions", "1", *bootstrap)
    environment.run("odradek", "produce", "t", *bootstrap, stdin="hello\n")
    read = environment.run(
        "odradek", "consume", "t", "--from-beginning", "--exit-at-end", *bootstrap
    )
    assert read == "hello\n"


def _run(*command: str, cwd: Path | None = None, stdin: str = "") -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PIP_S_MAX,
        check=False,
        env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "ODRADEK_BOOTSTRAP")},
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
