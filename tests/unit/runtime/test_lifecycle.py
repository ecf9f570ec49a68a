"""When a process stops in a controlled way, and when it stops at once."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_PROGRAM = """
import asyncio, os, signal, sys
from odradek_runtime.lifecycle import StopRequest, run_process

async def main(stop: StopRequest) -> None:
    seen = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, seen.set)
    print("up", flush=True)
    await stop.wait()
    os.kill(os.getpid(), signal.SIGTERM)  # while it stops; the next signal tells that it was seen
    os.kill(os.getpid(), signal.SIGUSR1)
    await seen.wait()
    print(stop.reason, flush=True)

sys.exit(run_process(main, program="test", exit_with_parent=True))
"""


@asynccontextmanager
async def _running() -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _PROGRAM,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(20):
            assert process.stdout is not None
            assert await process.stdout.readline() == b"up\n"
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_signal_to_a_process_that_stops_for_another_reason_leaves_it_its_time() -> None:
    """A parent that ends a child closes its standard input and sends SIGTERM, in either order."""
    async with _running() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert await process.wait() == 0
        assert await process.stdout.read() == b"the parent process exited\n"


async def test_a_second_signal_ends_it_at_once() -> None:
    async with _running() as process:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 128 + signal.SIGTERM


_WITH_A_THREAD = """
import sys, threading
from odradek_runtime.lifecycle import StopRequest, run_process

def work() -> None:
    raise ValueError("nobody expected this")

async def main(stop: StopRequest) -> None:
    threading.Thread(target=work, name="heartbeat", daemon=True).start()
    await stop.wait()
    print(stop.reason, flush=True)

sys.exit(run_process(main, program="test"))
"""


async def test_a_thread_that_fails_ends_the_process() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _WITH_A_THREAD,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(20):
            told, traceback = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 1
    assert told == b"thread heartbeat failed\n"
    assert b"ValueError: nobody expected this" in traceback


async def test_a_process_started_with_closed_streams_gives_their_numbers_to_no_file() -> None:
    """The C library and gRPC write to descriptor 2; a segment of a log must not have this number."""
    program = """
import os, sys
from odradek_runtime.program import open_standard_streams
open_standard_streams()
first = os.open("/dev/zero", os.O_RDONLY)
print("discarded", flush=True)
print("discarded", file=sys.stderr, flush=True)
sys.stdout.flush()
os._exit(first)
"""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program
    )
    async with asyncio.timeout(20):
        assert await process.wait() == 3
