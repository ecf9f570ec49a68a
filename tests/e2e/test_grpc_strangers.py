"""A gRPC listener that requires a login: requests before the login are not read, and a signed token counts as a
login.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import psutil  # type: ignore[import-untyped]
import pytest

from odradek import SaslCredentials, TlsOptions
from odradek.admin.access import Acl, AclOperation, ResourceType
from odradek.client import Client
from odradek.errors import AuthorizationFailed
from tests.e2e.secure_cluster import SecureCluster

MESSAGE_BYTES = 48 << 20
CALLS = 8
GROWTH_BYTES_MAX = 64 << 20
TIMEOUT_S = 60.0
METHODS = {
    "/odradek.v1.AuthService/Authenticate": grpc.StatusCode.UNAUTHENTICATED,
    "/grpc.health.v1.Health/Check": grpc.StatusCode.OK,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": grpc.StatusCode.UNAUTHENTICATED,
    "/odradek.v1.BrokerService/ListOffsets": grpc.StatusCode.UNAUTHENTICATED,
}


@pytest.mark.parametrize("method", METHODS)
async def test_large_messages_of_a_stranger_are_not_taken(
    cluster: SecureCluster, method: str
) -> None:
    broker = cluster.brokers[1]
    process = psutil.Process(broker.pid)
    before, peak = process.memory_info().rss, 0
    ended = asyncio.Event()

    async def watch() -> None:
        nonlocal peak
        while not ended.is_set():
            peak = max(peak, process.memory_info().rss)
            await asyncio.sleep(0)

    async def send(channel: grpc.aio.Channel) -> grpc.StatusCode:
        unary: Any = channel.unary_unary(method)  # gRPC has no type for a call with bytes
        code: grpc.StatusCode = await unary(
            message,
            timeout=TIMEOUT_S,
            metadata=(
                ("odradek-sasl-mechanism", "SCRAM-SHA-512"),
                ("odradek-sasl-token-bin", b"nonsense"),
            ),
        ).code()
        return code

    message = b"\x0a" + _varint(MESSAGE_BYTES) + bytes(MESSAGE_BYTES)  # a string in field 1
    trusted = grpc.ssl_channel_credentials(cluster.ca.read_bytes())
    options = [("grpc.max_send_message_length", -1)]
    endpoint = f"127.0.0.1:{broker.ready_line['ports']['GRPC_USERS']}"
    async with grpc.aio.secure_channel(endpoint, trusted, options=options) as channel:
        watching = asyncio.create_task(watch())
        try:
            codes = await asyncio.gather(*(send(channel) for _ in range(CALLS)))
        finally:
            ended.set()
            await watching
    assert peak - before < GROWTH_BYTES_MAX
    assert set(codes) == {METHODS[method]}


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


async def test_the_sdk_logs_in_by_a_signed_token(cluster: SecureCluster) -> None:
    name = "token-user"
    endpoints = [
        f"127.0.0.1:{one.ready_line['ports']['GRPC_USERS']}" for one in cluster.brokers.values()
    ]
    credentials = SaslCredentials(mechanism="OAUTHBEARER", token=lambda: cluster.issuer.token(name))
    async with cluster.admin() as admin:
        await admin.admin.create_topic("by-token", partitions=1, replication_factor=1)
        async with Client(
            endpoints, tls=TlsOptions(ca=cluster.ca), credentials=credentials
        ) as client:
            with pytest.raises(AuthorizationFailed):
                await client.admin.delete_topic("by-token")
            await admin.admin.create_acls(
                [
                    Acl(
                        resource_type=ResourceType.TOPIC,
                        resource_name="by-token",
                        principal=f"User:{name}",
                        operation=one,
                    )
                    for one in (AclOperation.DESCRIBE, AclOperation.DELETE)
                ]
            )
            async with asyncio.timeout(20):
                while True:  # until the broker has applied the new ACLs
                    try:
                        await client.admin.delete_topic("by-token")
                        break
                    except AuthorizationFailed:
                        continue
