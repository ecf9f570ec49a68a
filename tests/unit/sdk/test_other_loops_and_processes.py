"""A client is used where its connections are invalid: on a second event loop, or in a forked
process.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap

import pytest

from odradek import Client
from odradek.errors import WrongLoop
from odradek.testing import MemoryCluster


def test_a_second_event_loop_is_refused_at_once() -> None:
    cluster = MemoryCluster(brokers=1)
    cluster.create_topic("t", partitions=1)
    client = Client(cluster.bootstrap, transport=cluster.transport())
    producer = client.producer()
    consumer = client.consumer("t", auto_offset_reset="earliest")

    async def use() -> None:
        await producer.send_and_wait("t", b"v")
        assert [r.value for r in await consumer.getmany(10_000)] == [b"v"]

    async def misuse() -> None:
        with pytest.raises(WrongLoop, match="has ended; create a client in each"):
            await client.admin.list_topics()
        with pytest.raises(WrongLoop):
            await producer.send("t", b"v")
        with pytest.raises(WrongLoop):
            await consumer.getmany(0)
        with pytest.raises(WrongLoop):
            await client.connect()

    asyncio.run(use())
    asyncio.run(misuse())


def in_a_child(before: str, after: str) -> str:
    """Run `before` in a process, fork it, and return what the child prints that runs `after`."""
    program = (
        "import os, odradek, odradek.sync\n"
        "from odradek.errors import *\n"
        "from odradek.testing import MemoryCluster\n"
        + textwrap.dedent(before)
        + "if os.fork():\n    os.wait(); os._exit(0)\n"
        + "try:\n"
        + textwrap.indent(textwrap.dedent(after), "    ")
        + "except OdradekError as error:\n    print(type(error).__name__, error, flush=True)\n"
        + "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.stdout


SYNC_CLIENT = """
    cluster = MemoryCluster(brokers=1)
    cluster.create_topic("t")
    client = odradek.sync.Client(cluster.bootstrap, transport=cluster.transport())
    producer = client.producer()
    producer.send_and_wait("t", b"v")
"""


@pytest.mark.parametrize(
    "use",
    [
        'producer.send("t", b"v")',
        "client.admin.list_topics()",
        'next(client.consumer("t", auto_offset_reset="earliest"))',
    ],
)
def test_a_forked_child_is_told_that_the_client_is_its_parents(use: str) -> None:
    assert in_a_child(SYNC_CLIENT, use + "\n").startswith(
        "ForkedProcess this client was created before the process was forked; create clients after"
    )


def test_a_forked_child_may_leave_what_its_parent_entered() -> None:
    assert in_a_child(
        SYNC_CLIENT, "producer.close(); client.close(); print('left', flush=True)\n"
    ) == ("left\n")


DIALLED = """
    client = odradek.sync.Client("127.0.0.1:1")
    try:
        client.connect(0.1)
    except BrokersUnavailable:
        pass
"""


def test_a_child_forked_while_grpc_was_in_use_is_refused_a_client() -> None:
    told = in_a_child(DIALLED, 'odradek.sync.Client("127.0.0.1:1")\n')
    assert told.startswith("ForkedProcess gRPC was in use when this process was forked"), told


def test_a_child_forked_before_grpc_was_used_may_have_one() -> None:
    made = 'client = odradek.sync.Client("127.0.0.1:1")\n'
    use = made + "client.connect(0.1)\n"
    assert in_a_child(made, use).startswith("BrokersUnavailable"), "it dials"


def test_a_busy_process_may_start_others() -> None:
    """Spark starts its JVM like this:

    Python code, and what gRPC has registered, runs between fork and exec.
    """
    program = """
import odradek, asyncio, subprocess, threading
import grpc, grpc.aio

started = threading.Event()

async def answer(request, _):
    return request

async def call(port):
    while True:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            echo = channel.unary_unary("/test.Echo/Call")
            for _ in range(20):
                await echo(b"x", timeout=30)
                started.set()

async def keep_busy():
    server = grpc.aio.server()
    methods = {"Call": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await asyncio.gather(*(call(port) for _ in range(4)))

threading.Thread(target=lambda: asyncio.run(keep_busy()), daemon=True).start()
assert started.wait(30)
for _ in range(60):
    child = subprocess.Popen(["true"], preexec_fn=lambda: None)
    print(child.wait(timeout=30))
import os
os._exit(0)
"""
    environment = {k: v for k, v in os.environ.items() if k != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(
        [sys.executable, "-u", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    assert done.stdout.split() == ["0"] * 60, done.stderr[-2000:]
