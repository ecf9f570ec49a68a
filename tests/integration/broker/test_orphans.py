"""A process that was started with --exit-with-parent ends with its parent, even if it is busy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ORPHAN_S_MAX = 1.0
GONE_S_MAX = 30.0  # what no machine is slow enough for
_POLL_S = 0.05
_CHILD = """
import asyncio, sys, threading, time
from odradek_runtime.lifecycle import run_process

async def waits(stop):
    await stop.wait()

async def spins(stop):
    print("up", flush=True)
    while True:
        pass

async def sleeps_in_a_thread(stop):
    print("up", flush=True)
    await stop.wait()
    await asyncio.to_thread(time.sleep, 1_000)

async def leaves_a_thread(stop):
    threading.Thread(target=time.sleep, args=(1_000,)).start()
    print("up", flush=True)
    await stop.wait()

main = {{f.__name__: f for f in (waits, spins, sleeps_in_a_thread, leaves_a_thread)}}[{main!r}]
sys.exit(run_process(main, program="child", exit_with_parent=True, orphan_s_max={orphan_s_max}))
"""
_PARENT = """
import sys, time
from pathlib import Path
from odradek.embedded import ClusterPlan, EmbeddedCluster

cluster = EmbeddedCluster(ClusterPlan(brokers=1, controllers=3, data_dir=Path(sys.argv[1])))
cluster.start()
cluster.wait_ready()
print(*(child.pid for child in cluster.children()), flush=True)
time.sleep(1_000)
"""


def child(main: str, *, orphan_s_max: float = ORPHAN_S_MAX) -> subprocess.Popen[bytes]:
    """Start a process that is busy and does not stop by itself.

    Its standard input ends when its parent ends.
    """
    code = _CHILD.format(main=main, orphan_s_max=orphan_s_max)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("main", ["spins", "sleeps_in_a_thread", "leaves_a_thread"])
def test_an_orphan_that_does_not_stop_is_ended_and_says_where_it_was(main: str) -> None:
    with child(main) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"up\n"
        process.stdin.close()
        assert process.wait(GONE_S_MAX) == 1
        assert process.stderr is not None
        told = process.stderr.read().decode()
    assert "Timeout" in told
    assert "Thread 0x" in told


def test_an_orphan_that_stops_by_itself_is_left_alone() -> None:
    # On a slow machine, a process may need longer than ORPHAN_S_MAX to end by itself.
    with child("waits", orphan_s_max=2 * GONE_S_MAX) as process:
        _, told = process.communicate(timeout=GONE_S_MAX)  # closes standard input
    assert process.returncode == 0, told


def test_no_process_of_a_cluster_outlives_who_started_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 4
        parent.send_signal(signal.SIGKILL)
    deadline_s = time.monotonic() + GONE_S_MAX
    while left := [pid for pid in pids if _runs(pid)]:
        assert time.monotonic() < deadline_s, f"orphans after {GONE_S_MAX:.0f} s: {left}"
        time.sleep(_POLL_S)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
