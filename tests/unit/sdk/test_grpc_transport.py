"""The gRPC transport over real sockets: the error for each status, streams that end, and silent connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc
import grpc.aio
import pytest

from odradek.cluster.grpc_errors import translated
from odradek.cluster.grpc_transport import GrpcTransport
from odradek.cluster.methods import BROKER_SERVICE, METADATA, PRODUCE, WATCH_METADATA
from odradek.cluster.sasl_login import Session
from odradek.cluster.security import SaslCredentials
from odradek.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    BrokerUnreachable,
    ClientClosed,
    NameUnresolvable,
    OdradekError,
    RequestTimedOut,
    ServerFault,
    ThrottlingQuotaExceeded,
    UnsupportedOperation,
    WrongListener,
)
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb

Unary = Callable[[pb.MetadataRequest, grpc.aio.ServicerContext], object]


async def metadata(request: pb.MetadataRequest, context: object) -> pb.MetadataResponse:
    return pb.MetadataResponse(cluster_id="c")


async def produce(requests: AsyncIterator[pb.ProduceRequest], context: object) -> object:
    async for request in requests:
        if request.acks == 7:
            return
        yield pb.ProduceResponse(request_id=request.request_id)


async def watch(request: pb.WatchMetadataRequest, context: object) -> object:
    for offset in range(len(request.topics)):
        yield pb.WatchMetadataResponse(metadata=pb.MetadataResponse(metadata_offset=offset))


@dataclass
class Server:
    """A broker that serves calls with these handlers."""

    port: int = 0
    server: grpc.aio.Server = field(init=False)

    async def start(
        self, unary: Unary = metadata, credentials: grpc.ServerCredentials | None = None
    ) -> None:
        handlers = {
            "Metadata": grpc.unary_unary_rpc_method_handler(
                unary,
                request_deserializer=pb.MetadataRequest.FromString,
                response_serializer=pb.MetadataResponse.SerializeToString,
            ),
            "Produce": grpc.stream_stream_rpc_method_handler(
                produce,
                request_deserializer=pb.ProduceRequest.FromString,
                response_serializer=pb.ProduceResponse.SerializeToString,
            ),
            "WatchMetadata": grpc.unary_stream_rpc_method_handler(
                watch,
                request_deserializer=pb.WatchMetadataRequest.FromString,
                response_serializer=pb.WatchMetadataResponse.SerializeToString,
            ),
        }
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 500),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
        self.server = grpc.aio.server(options=options)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(BROKER_SERVICE, handlers),)
        )
        if credentials is None:
            self.port = self.server.add_insecure_port(self.endpoint)
        else:
            self.port = self.server.add_secure_port(self.endpoint, credentials)
        await self.server.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        await self.server.stop(None)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def transport() -> AsyncIterator[GrpcTransport]:
    transport = GrpcTransport()
    yield transport
    await transport.close()


async def ask(transport: GrpcTransport, endpoint: str, timeout_s: float = 5.0) -> str:
    answer = await transport.call(endpoint, METADATA, pb.MetadataRequest(), timeout_s=timeout_s)
    return answer.cluster_id


async def test_connecting_before_a_call(server: Server, transport: GrpcTransport) -> None:
    await transport.connect([server.endpoint, "127.0.0.1:1"], timeout_s=60)
    (connected, _) = transport._channels.values()
    assert connected.channel.get_state() is grpc.ChannelConnectivity.READY
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and says nothing
        await transport.connect([f"127.0.0.1:{silent.getsockname()[1]}"], timeout_s=0.05)
    assert await ask(transport, server.endpoint) == "c"


async def test_calls_and_both_kinds_of_streams(server: Server, transport: GrpcTransport) -> None:
    assert await ask(transport, server.endpoint) == "c"
    stream = transport.open(server.endpoint, PRODUCE)
    for request_id in (1, 2):
        await stream.send(pb.ProduceRequest(request_id=request_id))
        answer = await stream.receive()
        assert answer is not None
        assert answer.request_id == request_id
    await stream.send(pb.ProduceRequest(acks=7))
    assert await stream.receive() is None, "the broker ended it in good order"
    watch = transport.open(server.endpoint, WATCH_METADATA)
    await watch.send(pb.WatchMetadataRequest(topics=["a", "b"]))
    assert [await watch.receive() is not None for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, AuthenticationFailed),
        (grpc.StatusCode.PERMISSION_DENIED, AuthorizationFailed),
        (grpc.StatusCode.UNIMPLEMENTED, UnsupportedOperation),
        (grpc.StatusCode.UNAVAILABLE, BrokerUnreachable),
        (grpc.StatusCode.INTERNAL, ServerFault),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ThrottlingQuotaExceeded),
    ],
)
async def test_each_status_is_the_leaf_for_its_remedy(
    transport: GrpcTransport, code: grpc.StatusCode, error: type[OdradekError]
) -> None:
    async def refuse(request: object, context: grpc.aio.ServicerContext) -> None:
        await context.abort(code, "the details")

    server = Server()
    await server.start(refuse)
    with pytest.raises(error, match=server.endpoint) as caught:
        await ask(transport, server.endpoint)
    assert type(caught.value) is error
    if error is not UnsupportedOperation:
        assert "the details" in str(caught.value)
    await server.stop()


async def test_no_answer_in_time_is_a_time_out(transport: GrpcTransport) -> None:
    async def hang(request: object, context: object) -> None:
        await asyncio.Event().wait()

    server = Server()
    await server.start(hang)
    with pytest.raises(RequestTimedOut, match="Metadata"):
        await ask(transport, server.endpoint, timeout_s=0.1)
    await server.stop()


async def test_nobody_there_and_no_such_name(transport: GrpcTransport) -> None:
    with pytest.raises(
        BrokerUnreachable, match=r"127\.0\.0\.1:1 is unreachable: Connection refused$"
    ):
        await ask(transport, "127.0.0.1:1")
    with pytest.raises(NameUnresolvable, match="cannot be resolved"):
        await ask(transport, "no-such-host.invalid:9090")


@pytest.mark.parametrize("waiting", ["receive", "send"])
async def test_a_stream_that_is_cancelled_wakes_who_waits(
    server: Server, transport: GrpcTransport, waiting: str
) -> None:
    stream = transport.open(server.endpoint, PRODUCE)
    await stream.send(pb.ProduceRequest(request_id=1))
    assert await stream.receive() is not None
    task = asyncio.create_task(stream.receive())
    await asyncio.sleep(0)
    stream.cancel()
    stream.cancel()
    with pytest.raises(BrokerUnreachable):
        await asyncio.wait_for(task, 30)
    with pytest.raises(BrokerUnreachable):
        await stream.send(pb.ProduceRequest())


async def test_ones_own_cancellation_passes(server: Server, transport: GrpcTransport) -> None:
    stream = transport.open(server.endpoint, PRODUCE)
    await stream.send(pb.ProduceRequest(request_id=1))
    assert await stream.receive() is not None
    task = asyncio.create_task(stream.receive())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_broker_that_comes_back_is_reached_soon(
    server: Server, transport: GrpcTransport
) -> None:
    assert await ask(transport, server.endpoint) == "c"
    await server.stop()
    for _ in range(30):  # long enough for a back-off that grows
        with pytest.raises(OdradekError):
            await ask(transport, server.endpoint, 1.0)
        await asyncio.sleep(0.05)
    again = Server(server.port)
    await again.start()
    began_s = time.monotonic()
    while True:
        with contextlib.suppress(BrokerUnreachable, RequestTimedOut):
            assert await ask(transport, again.endpoint, 1.0) == "c"
            break
        await asyncio.sleep(0.02)
    assert time.monotonic() - began_s < 2.0
    await again.stop()


async def test_a_closed_transport_says_so(server: Server) -> None:
    transport = GrpcTransport()
    assert await ask(transport, server.endpoint) == "c"
    await transport.close()
    with pytest.raises(ClientClosed):
        await ask(transport, server.endpoint)


# --- a link that goes silent --------------------------------------------------------------------------


class Link:
    """A TCP relay that can drop all bytes, like a cable that is unplugged."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def blackhole(self) -> None:
        self._is_open.clear()

    def restore(self) -> None:
        self._is_open.set()

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the sockets close in the loop's next round

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        for source, sink in ((reader, to_writer), (to_reader, writer)):
            task = asyncio.create_task(self._relay(source, sink))
            self._tasks.add(task)

    async def _relay(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    await self._is_open.wait()
                    sink.write(data)
                    await sink.drain()
        finally:
            sink.transport.abort()


async def test_a_silent_link_breaks_in_two_seconds_and_works_again_when_it_is_back(
    server: Server, transport: GrpcTransport
) -> None:
    link = Link(server.port)
    await link.start()
    endpoint = f"127.0.0.1:{link.port}"
    stream = transport.open(endpoint, PRODUCE)
    await stream.send(pb.ProduceRequest(request_id=1))
    assert await stream.receive() is not None
    link.blackhole()
    began_s = time.monotonic()
    with pytest.raises(BrokerUnreachable):
        await asyncio.wait_for(stream.receive(), 30)
    assert time.monotonic() - began_s < 10.0, "gRPC's default is a minute"
    with pytest.raises((BrokerUnreachable, RequestTimedOut)):
        await ask(transport, endpoint, 3.0)
    link.restore()
    began_s = time.monotonic()
    while True:
        with contextlib.suppress(BrokerUnreachable, RequestTimedOut):
            assert await ask(transport, endpoint, 0.5) == "c"
            break
    assert time.monotonic() - began_s < 2.0
    await transport.close()
    await link.stop()


async def test_a_resolver_that_does_not_answer_does_not_hold_up_the_news_of_a_lost_broker(
    transport: GrpcTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silence(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", silence, raising=False)
    monkeypatch.setattr("odradek.cluster.grpc_errors.RESOLVE_S_MAX", 0.1)
    began_s = time.monotonic()
    with pytest.raises(BrokerUnreachable) as caught:
        await ask(transport, "127.0.0.1:1")
    assert type(caught.value) is BrokerUnreachable, "whether its name resolves is not known"
    assert time.monotonic() - began_s < 5


class SilentLogin(GrpcTransport):
    """A transport whose broker never responds to a login."""

    async def log_in(self, endpoint: str, credentials: SaslCredentials) -> Session:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def test_the_time_limit_of_a_call_includes_its_login_and_the_logins_of_others() -> None:
    user = SaslCredentials(mechanism="SCRAM-SHA-512", username="u", password="p")
    transport = SilentLogin(credentials=user)
    calls = [
        transport.call("127.0.0.1:1", METADATA, pb.MetadataRequest(), timeout_s=0.01)
        for _ in range(3)
    ]
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [BrokerUnreachable] * 3
    await transport.close()


FAREWELL = "this is the listener HTTP of a gateway: use the gRPC address (port 9090 by default)"


@pytest.mark.parametrize(
    "details",
    [
        f"GOAWAY received; Error code: 13; Debug Text: {FAREWELL}",
        f"failed to connect to all addresses (GOAWAY received; Debug Text: {FAREWELL})))",
        f"Debug Text: {FAREWELL} (GOAWAY received; Error code: 13; Debug Text: {FAREWELL}))",
    ],
)
async def test_the_message_of_a_wrong_listener_is_cut_from_grpcs_details(details: str) -> None:
    error = await translated(grpc.StatusCode.UNAVAILABLE, details, "127.0.0.1:8082", "Metadata")
    assert isinstance(error, WrongListener)
    assert error.reason == FAREWELL
