"""Brokers use TLS to controllers, to each other and to clients, and refuse peers without the right
certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc.aio
import pytest

from odradek.cli.certificate_authority import CertificateAuthority
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin_pb
from odradek_protocol.rpc.v1 import admin_service_pb2_grpc as admin_grpc
from odradek_protocol.rpc.v1 import broker_service_pb2 as broker_pb
from odradek_protocol.rpc.v1 import broker_service_pb2_grpc as broker_grpc
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_protocol.rpc.v1 import replication_service_pb2_grpc as pb_grpc
from odradek_runtime.grpc_endpoints import internal_channel
from odradek_runtime.tls import TlsFiles
from tests.integration.broker.broker_cluster import (
    BrokerCluster,
    batch,
    produce_request,
    record_values,
)


@pytest.fixture
def tls_of(tmp_path: Path) -> Callable[[str], TlsFiles]:
    folder = tmp_path / "ca"
    authority = CertificateAuthority(folder)
    ca = authority.create(common_name="test", days=1)
    issued: dict[str, TlsFiles] = {}

    def issue(name: str) -> TlsFiles:
        if name not in issued:
            certificate, key = authority.issue(name, hosts=["127.0.0.1"], days=1)
            issued[name] = TlsFiles(certificate=certificate, key=key, ca=ca)
        return issued[name]

    return issue


async def test_records_are_replicated_and_read_over_tls(
    tmp_path: Path, tls_of: Callable[[str], TlsFiles]
) -> None:
    async with BrokerCluster(tmp_path, brokers=2, tls_of=tls_of) as cluster:
        await cluster.create_topic("t", replicas=2, min_insync_replicas="2")
        result = await cluster.produce("t", batch([b"1", b"2", b"3"]))
        assert result.error_code == 0
        assert record_values(await cluster.read("t", end=3)) == [1, 2, 3]


async def test_a_stranger_cannot_follow(tmp_path: Path, tls_of: Callable[[str], TlsFiles]) -> None:
    async with BrokerCluster(tmp_path, brokers=1, tls_of=tls_of) as cluster:
        port = cluster.brokers[1].ports["REPLICATION"]
        hello = pb.ReplicateRequest(
            hello=pb.ReplicaHello(cluster_id=cluster.cluster_id, broker_id=2, session_id=1)
        )

        async def knock(channel: grpc.aio.Channel) -> grpc.StatusCode:
            async with channel:
                call = pb_grpc.ReplicationServiceStub(channel).Replicate()
                try:
                    await call.write(hello)
                    await call.read()
                except grpc.aio.AioRpcError as error:
                    return error.code()
                return await call.code()

        anonymous = grpc.aio.secure_channel(
            f"127.0.0.1:{port}", grpc.ssl_channel_credentials(tls_of("x").ca.read_bytes())
        )
        assert await knock(anonymous) is grpc.StatusCode.UNAVAILABLE
        another = internal_channel("127.0.0.1", port, tls_of("broker-3"), peer="broker-1")
        assert await knock(another) is grpc.StatusCode.PERMISSION_DENIED
        plain = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        assert await knock(plain) is grpc.StatusCode.UNAVAILABLE


async def test_a_broker_that_is_not_who_was_dialled_is_left(
    tmp_path: Path, tls_of: Callable[[str], TlsFiles]
) -> None:
    async with BrokerCluster(tmp_path, brokers=1, tls_of=tls_of) as cluster:
        port = cluster.brokers[1].ports["REPLICATION"]
        channel = internal_channel("127.0.0.1", port, tls_of("broker-2"), peer="broker-7")
        async with channel:
            call = pb_grpc.ReplicationServiceStub(channel).Replicate()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_authorizer_rules_over_grpc(
    tmp_path: Path, tls_of: Callable[[str], TlsFiles]
) -> None:
    settings = {
        "authorizer.class.name": "acl",
        "super.users": "User:CN=client",
        "ssl.client.auth": "required",
    }
    async with BrokerCluster(tmp_path, brokers=1, tls_of=tls_of, settings=settings) as cluster:
        await cluster.create_topic("t")
        assert (await cluster.produce("t", batch([b"1"]))).error_code == 0
        async with cluster.channel_as("alice", 1) as channel:
            broker = broker_grpc.BrokerServiceStub(channel)
            call = broker.Produce()
            await call.write(produce_request("t", batch([b"2"])))
            refused = (await call.read()).partitions[0]
            assert ErrorCode(refused.error_code) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert "User:CN=alice" in refused.error_message
            named = await broker.Metadata(broker_pb.MetadataRequest(topics=["t"]))
            assert named.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            every = await broker.Metadata(broker_pb.MetadataRequest(all_topics=True))
            assert not every.topics
            fetch = broker.Fetch()
            await fetch.write(
                broker_pb.FetchRequest(
                    credit_bytes=100,
                    add=[broker_pb.FetchPartition(topic="t", current_leader_epoch=-1)],
                )
            )
            told = (await fetch.read()).partitions[0]
            assert ErrorCode(told.error_code) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            fetch.cancel()
            admin = admin_grpc.AdminServiceStub(channel)
            for attempt in (
                admin.CreateTopics(admin_pb.CreateTopicsRequest(topics=[{"name": "u"}])),
                admin.DescribeAcls(admin_pb.DescribeAclsRequest()),
                broker.ListOffsets(broker_pb.ListOffsetsRequest(partitions=[{"topic": "t"}])),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as denied:
                    await attempt
                assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert record_values(await cluster.read("t", end=1)) == [1]
