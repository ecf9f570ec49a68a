"""Channels between processes of the cluster use renewed certificates and changed addresses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509

from odradek.cli.certificate_authority import CertificateAuthority
from odradek_runtime.grpc_endpoints import InternalChannels
from odradek_runtime.tls import TlsFiles


class Doorman(grpc.GenericRpcHandler):
    """A service that returns the serial number of the caller's certificate."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = asyncio.Event()

    def service(self, _details: Any) -> Any:
        async def answer(_request: bytes, context: Any) -> bytes:
            pem = context.auth_context()["x509_pem_cert"][0]
            self.asked.set()
            await self.may_answer.wait()
            return str(x509.load_pem_x509_certificate(pem).serial_number).encode()

        return grpc.unary_unary_rpc_method_handler(answer)


class Door:
    def __init__(self, folder: Path) -> None:
        self.authority = CertificateAuthority(folder)
        ca = self.authority.create(common_name="test", days=1)
        self.doorman = Doorman()
        self._server_files = self._issue("controller-1", ca)
        self.client_files = self._issue("broker-1", ca)

    def _issue(self, name: str, ca: Path) -> TlsFiles:
        certificate, key = self.authority.issue(name, hosts=["127.0.0.1"], days=1)
        return TlsFiles(certificate=certificate, key=key, ca=ca)

    async def open(self) -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self.doorman,))
        credentials = self._server_files.server_credentials(require_client=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        return server, port

    def serial(self) -> int:
        found = x509.load_pem_x509_certificate(self.client_files.certificate.read_bytes())
        return found.serial_number

    def renew(self) -> None:
        before = os.stat(self.client_files.certificate).st_mtime_ns
        self.authority.renew("broker-1", days=1)
        for path in (self.client_files.certificate, self.client_files.key):
            os.utime(path, ns=(before + 10**9, before + 10**9))


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Callable[[], Any]]:
    servers = []

    async def make() -> tuple[Door, int]:
        one = Door(tmp_path / "ca")
        server, port = await one.open()
        servers.append(server)
        return one, port

    yield make
    for server in servers:
        await server.stop(0)


async def shown(channel: grpc.aio.Channel) -> int:
    """Return the serial number of the certificate that the peer received."""
    return int(await channel.unary_unary("/test/Who")(b"", timeout=10))


async def test_a_renewed_certificate_is_shown_without_a_restart(door: Any) -> None:
    found, port = await door()
    channels = InternalChannels(found.client_files)
    first = found.serial()
    assert await shown(channels.channel("controller-1", "127.0.0.1", port)) == first
    same = channels.channel("controller-1", "127.0.0.1", port)
    assert channels.channel("controller-1", "127.0.0.1", port) is same
    found.doorman.may_answer.clear()
    found.doorman.asked.clear()
    under_way = asyncio.create_task(shown(same))
    await found.doorman.asked.wait()
    found.renew()
    renewed = channels.channel("controller-1", "127.0.0.1", port)
    found.doorman.may_answer.set()
    assert await shown(renewed) == found.serial() != first
    assert await under_way == first, "a call that was under way ends in order"
    await channels.close()


async def test_files_that_are_away_for_a_moment_leave_the_channel(door: Any) -> None:
    found, port = await door()
    channels = InternalChannels(found.client_files)
    before = channels.channel("controller-1", "127.0.0.1", port)
    hidden = found.client_files.key.rename(found.client_files.key.with_suffix(".away"))
    assert channels.channel("controller-1", "127.0.0.1", port) is before
    hidden.rename(found.client_files.key)
    await channels.close()


async def test_a_peer_that_moved_gets_another_channel() -> None:
    channels = InternalChannels(None)
    before = channels.channel("broker-1", "127.0.0.1", 1)
    assert channels.channel("broker-1", "127.0.0.1", 2) is not before
    assert channels.channel("broker-2", "127.0.0.1", 2) is not before
    await channels.close()
