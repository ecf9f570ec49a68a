"""Brokers that speak TLS: to the controller, to each other, to clients; and who is kept out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc.aio
import pytest

from odradek.cli.certificate_authority import CertificateAuthority
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_protocol.rpc.v1 import replication_service_pb2_grpc as pb_grpc
from odradek_runtime.grpc_endpoints import internal_channel
from odradek_runtime.tls import TlsFiles
from tests.integration.broker.broker_cluster import BrokerCluster, batch, record_values


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
