"""If a link between two processes silently drops everything, both ends notice it within about 2 s.

Nothing reports a cut cable. Without pings that must be answered, a stream would wait for more than
a minute.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from odradek.embedded import free_ports
from odradek_runtime.grpc_endpoints import internal_channel, new_server
from odradek_runtime.listeners import ListenerAddress
from tests.integration.broker.flaky_link import FlakyLink

NOTICED_BAR_S = 2.0
NOTICED_S_MAX = 6.0  # what no machine is slow enough for; gRPC's own time-out is 20 s and a minute
RECOVERED_BAR_S = 2.0
RECOVERED_S_MAX = 6.0
DARKNESS_S = 15.0
_ECHO = "/odradek.test.Echo/Echo"
_PACE_S = 0.1
_POLL_S = 0.01


class Echo(grpc.GenericRpcHandler):
    """Sends all messages back; `broken` is set when the server detects a dead stream."""

    def __init__(self) -> None:
        self.broken = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.stream_stream_rpc_method_handler(self._echo)

    async def _echo(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        try:
            async for request in requests:
                yield request
        finally:
            self.broken.set()


@asynccontextmanager
async def echo_behind_a_link() -> AsyncIterator[tuple[Echo, FlakyLink, grpc.aio.Channel]]:
    """Start a server with the options of our processes; yield an internal channel to it over a
    link.
    """
    [port] = free_ports(1)
    address = ListenerAddress(name="ECHO", host="127.0.0.1", port=port)
    server, echo = new_server(), Echo()
    server.add_generic_rpc_handlers((echo,))
    server.add_insecure_port(address.authority)
    await server.start()
    link = FlakyLink(("127.0.0.1", port))
    await link.start()
    try:
        async with internal_channel("127.0.0.1", link.port, None, peer="echo") as channel:
            yield echo, link, channel
    finally:
        await link.stop()
        await server.stop(0)


async def opened(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall[bytes, bytes]:
    """Return a stream over which a message has been returned."""
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(_ECHO)()
    await call.write(b"there?")
    assert await call.read() == b"there?"
    return call


async def keep_writing(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
    """Write repeatedly, as heartbeats and acknowledgements are written."""
    while not call.done():
        await call.write(b"beat")
        await asyncio.sleep(_PACE_S)


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
async def test_both_ends_notice_a_link_that_swallows_everything(is_busy: bool) -> None:
    async with echo_behind_a_link() as (echo, link, channel), asyncio.TaskGroup() as tasks:
        call = await opened(channel)
        writing = tasks.create_task(keep_writing(call)) if is_busy else None
        link.black_hole()
        began_s = time.monotonic()
        async with asyncio.timeout(NOTICED_S_MAX):
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
        client_s = time.monotonic() - began_s
        async with asyncio.timeout(NOTICED_S_MAX):
            await echo.broken.wait()
        server_s = time.monotonic() - began_s
        if writing is not None:
            writing.cancel()
    print(f"noticed after {client_s:.2f} s here, {server_s:.2f} s there; bar {NOTICED_BAR_S} s")


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_a_call_goes_through_soon_after_15_s_of_silence() -> None:
    async with echo_behind_a_link() as (_, link, channel):
        await opened(channel)
        link.black_hole()
        await asyncio.sleep(DARKNESS_S)
        link.heal()
        began_s = time.monotonic()
        async with asyncio.timeout(RECOVERED_S_MAX):
            while True:
                try:
                    await opened(channel)
                    break
                except grpc.RpcError:
                    await asyncio.sleep(_POLL_S)
        print(f"recovered after {time.monotonic() - began_s:.2f} s; bar {RECOVERED_BAR_S} s")
