"""Voters of another release, and voters that cannot be reached: neither ends this one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from odradek.embedded.free_ports import free_ports
from odradek_metadata_quorum.quorum.network import transport, wire
from odradek_metadata_quorum.quorum.network.peer_link import hello
from tests.integration.quorum.voter_networks import running, settings_of, until


async def test_a_voter_of_the_first_release_reaches_this_one_and_is_reached(tmp_path: Path) -> None:
    """It takes four fields of a hello and no more, in both directions."""
    ports = free_ports(2)
    greeted: list[list[Any]] = []
    refused: list[list[Any]] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (size,) = wire.LENGTH.unpack(await reader.readexactly(wire.LENGTH.size))
        values = msgpack.unpackb(await reader.readexactly(size))
        if len(values) != 5:
            refused.append(values)
            writer.transport.abort()
            return
        writer.write(wire.encode(hello("c", 2, 1, short=True)))
        greeted.append(values)
        await reader.read(1000)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", ports[1])
    async with server, running(settings_of(1, ports, tmp_path)) as (one,):
        await until(lambda: one.connected == [2])
        assert refused == [[20, 1, "c", 1, 2, wire.PROTOCOL_VERSION_MAX]]
        assert greeted == [[20, 1, "c", 1, 2]]
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        writer.write(wire.encode(hello("c", 2, 1, short=True)))
        (size,) = wire.LENGTH.unpack(await reader.readexactly(wire.LENGTH.size))
        assert msgpack.unpackb(await reader.readexactly(size)) == [20, 1, "c", 1, 2]
        writer.close()


async def test_a_voter_whose_name_cannot_be_looked_up_is_dialled_again_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transport, "UNREACHED_WARNING_S", 0.0)
    ports = free_ports(3)
    voters = {
        1: ("127.0.0.1", ports[0]),
        2: ("a..b", ports[1]),
        3: ("127.0.0.1", ports[2]),
    }
    first, third = (replace(settings_of(n, ports, tmp_path), voters=voters) for n in (1, 3))
    async with running(first, third) as (one, three):
        await until(lambda: one.connected == [3] and three.connected == [1])
        await until(
            lambda: any(
                "no host name" in str(getattr(record, "odradek_fields", {}).get("error"))
                for record in caplog.records
            )
        )
