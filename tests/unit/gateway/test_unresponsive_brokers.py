"""Brokers that accept connections and never respond, and a gateway without free file descriptors: the gateway serves
its health, and its errors say why it does not reach the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, cast

import grpc
import grpc.aio
import httpx
import pytest

from odradek.cluster.methods import BROKER_SERVICE
from odradek_gateway.app import create_app
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.settings import GatewaySettings
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb

SLACK_S = 5.0  # for a busy machine


@contextlib.contextmanager
def silent_brokers(count: int) -> Iterator[list[str]]:
    """Yield addresses at which the kernel accepts connections, and no process responds."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        yield [f"127.0.0.1:{listener.getsockname()[1]}" for listener in sockets]


@contextlib.asynccontextmanager
async def gateway(bootstrap: list[str]) -> AsyncIterator[tuple[ClusterAccess, httpx.AsyncClient]]:
    settings = GatewaySettings(bootstrap=",".join(bootstrap))
    access = ClusterAccess(settings, url="http://127.0.0.1:8082")
    transport = httpx.ASGITransport(app=create_app(settings, access, cast(Any, {})))
    async with access, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield access, http


@contextlib.contextmanager
def no_descriptors_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 10, hard))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)


async def test_a_gateway_whose_brokers_never_respond_says_so_within_the_time_of_its_probe() -> None:
    with silent_brokers(2) as endpoints:
        async with gateway(endpoints) as (_, http):
            began_s = time.monotonic()
            probe = asyncio.create_task(http.get("/readyz"))
            await asyncio.sleep(0)
            assert (await http.get("/livez")).status_code == 200
            assert not probe.done()
            ready = await probe
            assert time.monotonic() - began_s < 2.0 + SLACK_S
    assert ready.status_code == 503
    assert ready.json()["status"] == "no broker responds"
    for endpoint in endpoints:
        assert endpoint in ready.json()["reason"]


@contextlib.asynccontextmanager
async def broker(others: Sequence[str] = ()) -> AsyncIterator[str]:
    """Serve metadata with these other brokers; yield the port."""
    metadata = pb.MetadataResponse(
        cluster_id="c",
        brokers=[
            pb.BrokerInfo(broker_id=number, grpc_endpoint=endpoint)
            for number, endpoint in enumerate(others)
        ],
    )

    async def watch(request: pb.WatchMetadataRequest, context: object) -> AsyncIterator[object]:
        yield pb.WatchMetadataResponse(metadata=metadata)
        await asyncio.Event().wait()

    handler = grpc.unary_stream_rpc_method_handler(
        watch,
        request_deserializer=pb.WatchMetadataRequest.FromString,
        response_serializer=pb.WatchMetadataResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(BROKER_SERVICE, {"WatchMetadata": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield str(port)
    finally:
        await server.stop(None)


async def test_a_gateway_is_ready_if_one_broker_responds_and_all_others_never_do() -> None:
    with silent_brokers(20) as endpoints:
        async with broker(endpoints) as port, gateway([f"127.0.0.1:{port}"]) as (access, http):
            await access.client.connect(30)  # a probe waits for only 2 s
            assert (await http.get("/readyz")).status_code == 200
            assert set(access.client.broker_endpoints) == set(endpoints)
            began_s = time.monotonic()
            assert (await http.get("/readyz")).status_code == 200
            assert 0.4 < time.monotonic() - began_s < 0.5 + SLACK_S
            assert (await http.get("/livez")).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_gateway_without_descriptors_says_so_and_is_ready_once_it_has_some(
    host: str,
) -> None:
    async with broker() as port, gateway([f"{host}:{port}"]) as (access, http):
        with no_descriptors_left():
            assert (await http.get("/livez")).status_code == 200
            ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert "this process has too many open files" in ready.json()["reason"]
        assert "\0" not in ready.json()["reason"]
        await access.client.connect(30)
        assert (await http.get("/readyz")).status_code == 200
