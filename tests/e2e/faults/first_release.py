"""Checks out the first release from git, from which upgrade tests start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMIT = "6d304e6"  # metadata.version 1: no registrations of features, no incarnation
_ROOT = Path(__file__).parents[3]
_PACKAGES = (
    "proto/python",
    "services/runtime",
    "services/metadata_quorum",
    "services/broker",
    "services/gateway",
    "clients/python",
)


def first_release(directory: Path) -> dict[str, str]:
    """Extract the source tree of the first release into a directory; return the environment that
    makes a process run it.

    Skips the test if git does not have the commit: in a shallow clone, or in a tree without git.
    """
    archive = subprocess.run(
        ["git", "-C", str(_ROOT), "archive", COMMIT], capture_output=True, check=False
    )
    if archive.returncode:
        reason = archive.stderr.decode(errors="replace").strip()
        pytest.skip(
            f"commit {COMMIT}, which the upgrade begins with, is not in this clone: {reason}"
        )
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive.stdout, check=True)
    environment = {"PYTHONPATH": ":".join(str(directory / package) for package in _PACKAGES)}
    for script in ("generate.py", "compile_codec.py"):
        subprocess.run(
            [sys.executable, str(directory / "proto" / script)],
            cwd=directory,
            capture_output=True,
            check=True,
        )
    return environment
