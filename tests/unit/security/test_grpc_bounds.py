"""Limits for one gRPC client: the memory that it uses, the names in its requests, and its lines in
the audit log.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from odradek_broker.access.authorizer import AclAuthorizer
from odradek_broker.rpc.callers import log_refusal
from odradek_broker.rpc.intake import REQUEST_BYTES_MAX, GrpcIntake
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import broker_service_pb2_grpc as pb_grpc
from odradek_runtime.budget.client_budget import ITEMS_MAX
from odradek_runtime.budget.refusals import RefusalLines
from tests.unit.security.login_server import login_server
from tests.unit.security.raw_http2 import raw_http2

METADATA = "/odradek.v1.BrokerService/Metadata"


async def ask(endpoint: str, request: pb.MetadataRequest) -> grpc.StatusCode:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        stub: Any = pb_grpc.BrokerServiceStub(channel)
        try:
            await stub.Metadata(request, timeout=30)
        except grpc.aio.AioRpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return grpc.StatusCode.OK


async def until_no_calls(intake: GrpcIntake) -> None:
    async with asyncio.timeout(30):
        while intake.calls.total:  # noqa: ASYNC110  gRPC has no event for it
            await asyncio.sleep(0.005)


async def test_half_messages_are_few_and_end() -> None:
    intake = GrpcIntake(request_s_max=0.5)
    async with login_server(wants_login=False, intake=intake) as server:
        host, port = server.endpoint.split(":")
        async with raw_http2(host, int(port)) as client:
            streams = range(1, 25, 2)
            for stream in streams:
                client.begin(stream, METADATA)
            sent = await asyncio.gather(
                *(
                    client.send_half(stream, announced_bytes=8 << 20, sent_bytes=7 << 20)
                    for stream in streams
                )
            )
            await asyncio.gather(*(client.until_ended(stream) for stream in streams))
            assert not client.is_closed, client.goodbye
            assert len(sent) == 12
        assert intake.reads.shares.total == 0
        assert intake.reads.waiting == 0
        assert await ask(server.endpoint, pb.MetadataRequest()) is grpc.StatusCode.OK
    assert intake.calls.total == 0


async def test_what_waits_to_be_read_costs_no_more_than_its_window() -> None:
    intake = GrpcIntake(request_s_max=60)
    async with login_server(wants_login=False, intake=intake) as server:
        host, port = server.endpoint.split(":")
        async with raw_http2(host, int(port)) as client:
            streams = range(1, 25, 2)
            for stream in streams:
                client.begin(stream, METADATA)
            halves = [
                asyncio.create_task(
                    client.send_half(stream, announced_bytes=8 << 20, sent_bytes=7 << 20)
                )
                for stream in streams
            ]
            while sum(half.done() for half in halves) < 4 or intake.reads.waiting < 8:
                await asyncio.wait(halves, timeout=0.05)
            assert intake.reads.shares.total == 4
            assert sum(half.done() for half in halves) == 4, "the others have no window"
            for half in halves:
                half.cancel()
        await until_no_calls(intake)
    assert intake.reads.shares.total == 0


async def test_a_request_that_names_too_much_is_refused() -> None:
    async with login_server(wants_login=False) as server:
        few = pb.MetadataRequest(topics=["t"] * ITEMS_MAX)
        assert await ask(server.endpoint, few) is grpc.StatusCode.OK
        many = pb.MetadataRequest(topics=["t"] * (ITEMS_MAX + 1))
        assert await ask(server.endpoint, many) is grpc.StatusCode.INVALID_ARGUMENT
        long = pb.MetadataRequest(topics=["t" * 32_768])
        assert await ask(server.endpoint, long) is grpc.StatusCode.INVALID_ARGUMENT
        large = pb.MetadataRequest(topics=["t" * 32_000] * (REQUEST_BYTES_MAX // 32_000 + 1))
        assert await ask(server.endpoint, large) is grpc.StatusCode.INVALID_ARGUMENT


async def test_one_owner_has_so_many_calls() -> None:
    intake = GrpcIntake()
    intake.calls.owner_max = 2
    async with (
        login_server(wants_login=False, intake=intake) as server,
        grpc.aio.insecure_channel(server.endpoint) as channel,
    ):
        stub: Any = pb_grpc.BrokerServiceStub(channel)
        watches = [stub.WatchMetadata(pb.WatchMetadataRequest()) for _ in range(2)]
        for watch in watches:
            await watch.read()
        assert (
            await ask(server.endpoint, pb.MetadataRequest()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        )
        for watch in watches:
            watch.cancel()
        await until_no_calls(intake)
        assert await ask(server.endpoint, pb.MetadataRequest()) is grpc.StatusCode.OK


async def test_fetch_streams_have_a_limit_of_their_own() -> None:
    intake = GrpcIntake()
    intake.fetches.owner_max, intake.streams.owner_max = 3, 1
    async with (
        login_server(wants_login=False, intake=intake) as server,
        grpc.aio.insecure_channel(server.endpoint) as channel,
    ):
        stub: Any = pb_grpc.BrokerServiceStub(channel)
        fetches = [stub.Fetch() for _ in range(4)]
        endings = [asyncio.ensure_future(fetch.read()) for fetch in fetches]
        done, waiting = await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(waiting)) == (1, 3)
        with pytest.raises(grpc.aio.AioRpcError, match="holds 3 of 3 Fetch streams"):
            await done.pop()
        produce = stub.Produce()
        await produce.write(pb.ProduceRequest())
        await produce.read()
        refused = stub.Produce()
        with pytest.raises(grpc.aio.AioRpcError, match="holds 1 of 1 request streams"):
            await refused.read()
        for stream in (*fetches, produce):
            stream.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await until_no_calls(intake)
    assert intake.fetches.total == intake.streams.total == 0


def test_refused_names_are_neither_kept_nor_written_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = RefusalLines()
    for number in range(1000):
        fields = {"request": METADATA, "needs": f"DESCRIBE on TOPIC {number}" + "n" * 100_000}
        log_refusal(refusals, "Denied", "User:mallory", "10.0.0.1", **fields)
    lines = [r for r in caplog.records if r.name == "odradek_broker.audit"]
    assert 0 < len(lines) <= 150
    assert all(len(str(value)) < 300 for r in lines for value in r.odradek_fields.values())  # type: ignore[attr-defined]


async def test_who_may_write_nowhere_has_few_produce_streams() -> None:
    intake = GrpcIntake()
    async with (
        login_server(wants_login=False, intake=intake, authorizer=AclAuthorizer()) as server,
        grpc.aio.insecure_channel(server.endpoint) as channel,
    ):
        stub: Any = pb_grpc.BrokerServiceStub(channel)
        streams = [stub.Produce() for _ in range(2)]
        for stream in streams:
            await stream.write(pb.ProduceRequest(request_id=1))
            await stream.read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Produce().read()
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        for stream in streams:
            stream.cancel()
        await until_no_calls(intake)
    assert intake.in_vain.total == 0
