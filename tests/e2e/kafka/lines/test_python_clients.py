"""Clients in Python; each release is installed in a separate virtual environment below build/."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.kafka.lines.installation import BUILD, EXPECTED, HERE, report, tries
from tests.e2e.kafka.lines.releases import RELEASES

pytestmark = pytest.mark.timeout(400)
PROGRAMS: Final = {
    "kafka-python": "use_kafka_python.py",
    "aiokafka": "use_aiokafka.py",
    "confluent-kafka (librdkafka)": "use_confluent_kafka.py",
}
# Releases that `make test` tries: they are installed in seconds, and their first requests differ.
QUICK: Final = {
    ("kafka-python", "2.0.2"),
    ("kafka-python", "2.0.6"),
    ("aiokafka", "0.8.1"),
    ("aiokafka", "0.12.0"),
}
# Further packages, in the versions of that time: aiokafka 0.8.1 uses kafka-python's protocol code.
ALSO: Final = {("aiokafka", "0.8.1"): ["kafka-python==2.0.2"]}
# Interpreters for releases without wheels for later ones. A build would need that release's librdkafka headers.
PYTHON: Final = {("confluent-kafka (librdkafka)", "1.9.2"): "python3.10"}


def cases() -> list[object]:
    return [
        tries(client, release, is_long=(client, release) not in QUICK)
        for client in PROGRAMS
        for release in RELEASES[client]
    ]


@pytest.mark.parametrize(("client", "release"), cases())
def test_a_python_client_does_its_work(
    bootstrap: str, topic: str, client: str, release: str
) -> None:
    python = environment(client, release)
    program = [python, "-W", "ignore", HERE / PROGRAMS[client], bootstrap, topic]
    assert report(*program, folder=BUILD, PATH="/usr/bin:/bin") == EXPECTED


def environment(client: str, release: str) -> Path:
    """Return the interpreter of an environment with that release, which is made on first use."""
    name = client.partition(" ")[0]
    folder = BUILD / f"{name}-{release}"
    python = folder / "bin" / "python"
    if (folder / ".done").exists():
        return python
    base = interpreter(PYTHON[client, release]) if (client, release) in PYTHON else sys.executable
    shutil.rmtree(folder, ignore_errors=True)
    make_environment(base, folder, "--without-pip")
    installer = BUILD / "pip"
    if not (installer / "bin" / "pip").exists():
        make_environment(sys.executable, installer)
    wanted = [f"{name}=={release}", *ALSO.get((client, release), [])]
    pip = [f"{installer}/bin/python", "-m", "pip", f"--python={python}"]
    command = [*pip, "install", "--quiet", "--only-binary=:all:", *wanted]
    if (client, release) in QUICK:
        command += ["--retries=1", "--timeout=10"]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if installed.returncode != 0 and (client, release) in QUICK:
        shutil.rmtree(folder)
        pytest.skip(f"{name} {release} is not to be had: {installed.stderr.strip()[-300:]}")
    assert installed.returncode == 0, installed.stdout + installed.stderr
    (folder / ".done").touch()
    return python


def make_environment(base: str, folder: Path, *options: str) -> None:
    subprocess.run([base, "-m", "venv", *options, str(folder)], check=True, timeout=200)


def interpreter(name: str) -> str:
    """Return an interpreter of that name that starts, from PATH or from pyenv."""
    on_path = shutil.which(name)
    version = name.removeprefix("python")
    ours = Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}")
    for path in ([on_path] if on_path else []) + [str(one) for one in ours]:
        if subprocess.run([path, "-V"], capture_output=True, check=False).returncode == 0:
            return path
    pytest.skip(f"{name} is not installed")
