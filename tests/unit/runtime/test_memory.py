"""The options of the memory allocator let memory that one fetch frees be used for the next
fetch.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_ROUNDS = 200
_FAULTS_OF_BLOCKS = f"""
import resource, sys
if sys.argv[1] == "keep":
    from odradek_runtime.program import keep_freed_memory
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use_blocks(rounds):
    for _ in range(rounds):
        blocks = [b"x" * (1 << 20) for _ in range(8)]
        del blocks
use_blocks(3)
before = faults()
use_blocks({_ROUNDS})
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the options are glibc's")
def test_freed_blocks_are_not_taken_from_the_kernel_again() -> None:
    assert _faults("keep") < _ROUNDS < _faults("default")


def _faults(mode: str) -> int:
    told = subprocess.run(
        [sys.executable, "-c", _FAULTS_OF_BLOCKS, mode], capture_output=True, check=True, timeout=60
    )
    return int(told.stdout)
