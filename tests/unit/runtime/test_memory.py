"""The options of the memory allocator let memory that one fetch frees be used for the next
fetch.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from odradek_runtime.program import KEPT_BYTES_MAX

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
# With "each", every thread has an arena of its own, as glibc gives them by default.
_KEPT_BY_THREADS = """
import ctypes, sys, threading
from pathlib import Path
from odradek_runtime.program import keep_freed_memory
assert keep_freed_memory()
if sys.argv[1] == "each":
    ctypes.CDLL(None).mallopt(-8, 16)
def anonymous_bytes():
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024
begun, freed, done = threading.Barrier(9), threading.Barrier(9), threading.Barrier(9)
def use_blocks():
    begun.wait()
    for size_mib in (1, 3, 8, 15):
        block = b"x" * (size_mib << 20)
        del block
    freed.wait()
    done.wait()
threads = [threading.Thread(target=use_blocks) for _ in range(8)]
for thread in threads:
    thread.start()
before_bytes = anonymous_bytes()
begun.wait()
freed.wait()
print(anonymous_bytes() - before_bytes)
done.wait()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the options are glibc's")
def test_freed_blocks_are_not_taken_from_the_kernel_again() -> None:
    assert _faults("keep") < _ROUNDS < _faults("default")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the options are glibc's")
def test_threads_do_not_each_keep_what_they_freed() -> None:
    kept_bytes = _told(_KEPT_BY_THREADS, "keep")
    assert kept_bytes <= KEPT_BYTES_MAX < _told(_KEPT_BY_THREADS, "each")


def _faults(mode: str) -> int:
    return _told(_FAULTS_OF_BLOCKS, mode)


def _told(program: str, mode: str) -> int:
    """Return the number that a program prints."""
    told = subprocess.run(
        [sys.executable, "-c", program, mode], capture_output=True, check=True, timeout=60
    )
    return int(told.stdout)
