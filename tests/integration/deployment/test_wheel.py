"""The wheel of `make wheel` is installed as `odradek` and as `odradek[server]` in an empty virtual environment without
a compiler.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools import need

ROOT = Path(__file__).parents[3]
PIP_S_MAX = 1500

pytestmark = pytest.mark.timeout(1800)  # the first build compiles modules


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that `make wheel` builds from the tree."""
    return _made(tmp_path_factory.mktemp("wheel"))


def _made(folder: Path, *options: str) -> Path:
    need("a C compiler")
    # Without -o, make would install the packages again, while other tests use them.
    _run(
        "make", "-s", "-C", str(ROOT), "wheel", f"DIST={folder}", "-o", ".venv/.installed", *options
    )
    (built,) = folder.glob("odradek-*.whl")
    return built


class CleanEnvironment:
    """A virtual environment that contains only what the test installs; its programs find no
    compiler.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "env", with_pip=True)
        self.folder = folder
        self.bin = folder / "env" / "bin"
        self.of_the_sdk: set[str] = set()
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

    def packages(self) -> list[str]:
        listed = json.loads(self.run("python", "-m", "pip", "list", "--format=json"))
        return [package["name"] for package in listed]

    def run(self, program: str, *arguments: str, stdin: str = "") -> str:
        return _run(
            str(self.bin / program), *arguments, cwd=self.folder, stdin=stdin, path=str(self.bin)
        )


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    clean = CleanEnvironment(tmp_path_factory.mktemp("clean"))
    clean.install(str(wheel))
    # The server's packages come later, into the same environment.
    clean.of_the_sdk = {_distribution(package) for package in clean.packages()}
    return clean


@pytest.fixture(scope="module")
def cluster(environment: CleanEnvironment, wheel: Path) -> Iterator[dict[str, object]]:
    """Yield what `odradek dev --json` prints, run from the wheel with its server extra."""
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


def test_the_wheel_has_compiled_modules_beside_their_sources_and_fits_this_python(
    wheel: Path, environment: CleanEnvironment, cluster: dict[str, object]
) -> None:
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert re.fullmatch(rf"odradek-[\d.]+-{tag}-{tag}-\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    assert "odradek_broker/partition/replica.py" in names
    compiled = [name for name in names if name.startswith("odradek_broker/partition/replica.")]
    assert len(compiled) == 2, compiled
    assert "odradek_broker/LICENSE.mypyc" in names
    (log,) = (environment.folder / "data").rglob("broker-1.log")
    assert '"is_compiled":true' in log.read_text()
    assert "(compiled)" in environment.run("odradek", "--version")


def test_a_wheel_without_compiled_modules_fits_each_python(tmp_path: Path) -> None:
    wheel = _made(tmp_path, "COMPILED=0")
    assert re.fullmatch(r"odradek-[\d.]+-cp311-abi3-\w+\.whl", wheel.name)
    extensions = [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".so")]
    assert [Path(name).parent.name for name in extensions] == ["records"], "the codec alone"


def test_the_codec_needs_no_compiler(environment: CleanEnvironment) -> None:
    environment.run(
        "python", "-c",
        "from odradek_protocol.records import _codec, codec; assert codec.crc32c is _codec.crc32c",
    )  # fmt: skip


def test_the_sdk_alone_brings_and_imports_no_server_package(environment: CleanEnvironment) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    server = {_distribution(line) for line in project["optional-dependencies"]["server"]}
    assert "grpcio" in environment.of_the_sdk
    assert not server & environment.of_the_sdk
    imported = environment.run(
        "python", "-c", "import odradek, sys; print(*{name.split('.')[0] for name in sys.modules})"
    )
    # The rest is imported by the first name that a program takes from the package.
    third_party = {"grpc", "google", "cramjam", "rich", "typer", "scramp", "asyncio"}
    assert not third_party & set(imported.split())
    used = environment.run(
        "python", "-c",
        "import odradek, odradek.sync, sys; odradek.Client; print(*{name.split('.')[0] for name in sys.modules})",
    )  # fmt: skip
    services = {"odradek_runtime", "odradek_broker", "odradek_metadata_quorum", "odradek_gateway"}
    assert not (services | {"rich", "typer"}) & set(used.split())


def _distribution(requirement: str) -> str:
    """Return the normalized name of the distribution that a requirement names."""
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def _run(*command: str, cwd: Path | None = None, stdin: str = "", path: str = "") -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PIP_S_MAX,
        check=False,
        env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "ODRADEK_BOOTSTRAP")}
        | ({"PATH": path} if path else {}),
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
