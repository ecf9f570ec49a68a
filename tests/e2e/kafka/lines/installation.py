"""Installs the releases of clients, and runs their programs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

HERE: Final = Path(__file__).parent
BUILD: Final = HERE.parents[3] / "build" / "client-lines"
TIMEOUT_S: Final = 200
INSTALL_S_MAX: Final = 900
EXPECTED: Final = {"sent": 300, "read": 300, "committed": 300, "listed": True}


def run(*command: str | Path, folder: Path, timeout_s: float, **environment: str) -> str:
    """Run a command and return its standard output; a failure shows all of its output."""
    ran = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment or None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def report(*command: str | Path, folder: Path, **environment: str) -> Any:
    """Run a program and return the JSON object that it prints as its last line."""
    printed = run(*command, folder=folder, timeout_s=TIMEOUT_S, **environment)
    return json.loads(printed.splitlines()[-1])


def tool(name: str, package: str) -> str:
    """Return the path of a tool that a release is built with."""
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed: install {package}"
    return found


def tries(client: str, release: str, *, is_long: bool = True) -> Any:
    """Return the parameter of a test that tries this release."""
    return pytest.param(
        client,
        release,
        id=f"{client.partition(' ')[0]}-{release.replace(' ', '-')}",
        marks=[pytest.mark.release(client, release), *([pytest.mark.long] if is_long else [])],
    )
