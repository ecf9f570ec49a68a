"""The metrics of logins and of gRPC calls: by result and status code, with labels that callers cannot make up."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from odradek_broker.access.logins import Logins
from odradek_broker.access.sasl import LoginFailed, SaslExchange
from odradek_broker.rpc.call_counts import GrpcCalls
from odradek_protocol.metadata.records import ScramMechanism
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import broker_service_pb2_grpc as pb_grpc
from tests.unit.security.login_server import login_server
from tests.unit.security.test_sasl_transcripts import CREDENTIALS, log_in

SCRAM = "SCRAM-SHA-512"


def exchange(logins: Logins) -> SaslExchange:
    return SaslExchange(mechanisms=(SCRAM,), credentials=lambda: CREDENTIALS, logins=logins)


async def test_logins_are_counted_by_mechanism_and_result() -> None:
    assert ("mallory", ScramMechanism.SHA_512) in CREDENTIALS
    logins = Logins()
    good = exchange(logins)
    assert good.choose(SCRAM)
    await log_in(good.step, "mallory", "mine", SCRAM)
    bad = exchange(logins)
    assert bad.choose(SCRAM)
    with pytest.raises(LoginFailed):
        await log_in(bad.step, "mallory", "wrong", SCRAM)
    assert dict(logins.counts) == {(SCRAM, "success"): 1, (SCRAM, "failure"): 1}


async def test_callers_cannot_make_up_mechanisms() -> None:
    logins = Logins()
    assert not exchange(logins).choose("MADE-UP-1")
    assert not exchange(logins).choose("MADE-UP-2")
    with pytest.raises(LoginFailed):
        await exchange(logins).step(b"a token before the choice")
    assert dict(logins.counts) == {("", "failure"): 3}
    (family,) = logins.families()
    assert [s.labels for s in family.samples] == [{"mechanism": "", "result": "failure"}]


async def test_calls_are_counted_by_method_and_status() -> None:
    calls = GrpcCalls()
    async with (
        login_server(wants_login=False, calls=calls) as server,
        grpc.aio.insecure_channel(server.endpoint) as channel,
    ):
        stub: Any = pb_grpc.BrokerServiceStub(channel)
        await stub.ListOffsets(pb.ListOffsetsRequest())
        with pytest.raises(grpc.aio.AioRpcError):  # the servicer does not implement it
            await stub.InitProducerId(pb.InitProducerIdRequest())
        made_up: Any = channel.unary_unary("/odradek.v1.BrokerService/MadeUp")
        with pytest.raises(grpc.aio.AioRpcError):
            await made_up(b"")
        stream = stub.WatchMetadata(pb.WatchMetadataRequest())
        await stream.read()
        assert calls.streams["WatchMetadata"] == 1
        stream.cancel()
        async with asyncio.timeout(30):  # the server ends the call later than the client
            while calls.streams["WatchMetadata"]:  # noqa: ASYNC110  gRPC has no event for it
                await asyncio.sleep(0.01)
    assert calls.ended["ListOffsets", "OK"] == 1
    assert calls.ended["InitProducerId", "UNIMPLEMENTED"] == 1
    assert calls.ended["WatchMetadata", "CANCELLED"] == 1
    assert sum(calls.latencies["ListOffsets"].counts) == 1
    assert "WatchMetadata" not in calls.latencies
    assert {method for method, _ in calls.ended} == {
        "ListOffsets",
        "InitProducerId",
        "WatchMetadata",
    }


async def test_a_call_without_a_login_is_counted_as_refused() -> None:
    calls = GrpcCalls()
    async with (
        login_server(calls=calls) as server,
        grpc.aio.insecure_channel(server.endpoint) as channel,
    ):
        stub: Any = pb_grpc.BrokerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.ListOffsets(pb.ListOffsetsRequest())
    assert dict(calls.ended) == {("ListOffsets", "UNAUTHENTICATED"): 1}
