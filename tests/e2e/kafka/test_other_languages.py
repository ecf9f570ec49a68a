"""Clients with their own protocol code: three in Go, two in JavaScript.

They need `go` and `npm`; their modules are fetched once, below build/.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.tools import need

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
BUILD = HERE.parents[2] / "build"
TIMEOUT_S = 150


def run(*command: str | Path, folder: Path, timeout_s: float = TIMEOUT_S) -> str:
    """Run a command and return its standard output; a failure shows all of its output."""
    ran = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def objects(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


@pytest.fixture(scope="session")
def go_clients() -> Path:
    """Return a folder with a program for each Go client."""
    need("Go")
    folder = BUILD / "go-clients"
    folder.mkdir(parents=True, exist_ok=True)
    run(
        "go", "build", "-o", f"{folder}{os.sep}", "./...", folder=HERE / "go_clients", timeout_s=500
    )
    return folder


@pytest.fixture(scope="session")
def node_clients() -> Path:
    """Return a folder with the JavaScript programs and their modules."""
    need("npm")
    folder = BUILD / "node-clients"
    shutil.copytree(HERE / "node_clients", folder, dirs_exist_ok=True)
    run("npm", "install", "--no-package-lock", "--no-audit", folder=folder, timeout_s=300)
    return folder


def test_franz_go(go_clients: Path, bootstrap: str, topic: str) -> None:
    [reported] = objects(run(go_clients / "franz", bootstrap, topic, folder=go_clients))
    all_read = {"read": 10_000, "lag": 0}
    assert reported == {
        "sent": 10_000,
        "cooperative": all_read,
        "range": all_read,
        "read committed": all_read,
        "retention.ms": "3600000",
        "start": 10,
    }


def test_sarama(go_clients: Path, bootstrap: str, topic: str) -> None:
    reported = objects(run(go_clients / "sarama", bootstrap, topic, folder=go_clients))
    assert reported == [{"sent": 2000, "read": 2000, "committed": 2000}] * 14


def test_kafka_go(go_clients: Path, bootstrap: str, topic: str) -> None:
    reported = objects(run(go_clients / "kafkago", bootstrap, topic, folder=go_clients))
    assert reported == [{"sent": 1000, "read": 1000}] * 5


def test_kafkajs(node_clients: Path, bootstrap: str, topic: str) -> None:
    printed = run("node", "kafkajs.js", bootstrap, topic, folder=node_clients)
    [reported] = objects(printed.splitlines()[-1])
    assert reported == {"sent": 2000, "read": 2000, "committed": 2000, "end": 2000}


def test_platformatic(node_clients: Path, bootstrap: str, topic: str) -> None:
    reported = objects(run("node", "platformatic.js", bootstrap, topic, folder=node_clients))
    assert reported == [{"sent": 1000, "read": 1000}] * 2, (
        "by the classic and the consumer protocol"
    )
