"""A service raises its limit of open files to what the system allows, however it was started."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import os, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
from odradek_runtime.open_files import raise_open_files_limit
assert raise_open_files_limit() == hard
print(len([os.open("/dev/null", os.O_RDONLY) for _ in range(100)]))
"""


def test_the_limit_of_a_shell_does_not_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("100\n", "")
