"""A voter keeps running if other voters have another release or cannot be reached."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from odradek.embedded import free_ports
from odradek_metadata_quorum.network import transport, wire
from odradek_metadata_quorum.network.peer_link import hello
from tests.integration.quorum.voter_networks import a_vote, running, settings_of, until


async def test_a_voter_of_the_first_release_reaches_this_one_and_is_reached(tmp_path: Path) -> None:
    """The first release accepts exactly four fields in the hello message, in both directions."""
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
        assert refused == [[20, 1, "c", 1, 2, wire.PROTOCOL_VERSION_MAX, "1,2"]]
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
                "not a valid host name" in str(getattr(record, "odradek_fields", {}).get("error"))
                for record in caplog.records
            )
        )


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        str(getattr(record, "odradek_fields", {})["reason"])
        for record in caplog.records
        if record.message
        == "Refused a connection between controllers because their lists of voters differ"
    ]


async def test_voters_that_count_different_majorities_do_not_talk_and_say_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three controllers was formatted for two voters, so its majorities are different."""
    monkeypatch.setattr(transport, "REDIAL_PAUSE_S", 0.01)
    dials: list[int] = []
    connect = transport.VoterNetwork._connect_and_keep

    async def counted(self: transport.VoterNetwork, peer_id: int) -> None:
        dials.append(peer_id)
        await connect(self, peer_id)

    monkeypatch.setattr(transport.VoterNetwork, "_connect_and_keep", counted)
    ports = free_ports(3)
    first, second, third = (settings_of(node, ports, tmp_path) for node in (1, 2, 3))
    third = replace(third, voters={node: third.voters[node] for node in (2, 3)})
    async with running(first, second, third) as (one, two, three):
        await until(lambda: 2 in one.connected and 1 in two.connected)
        await until(lambda: len(_errors(caplog)) >= 2)
        said = len(_errors(caplog))
        first_dials = len(dials)

        def sent_and_dialled() -> bool:
            one.network.send_frame(3, a_vote(1))
            three.network.send_frame(2, a_vote(1))
            return len(dials) >= first_dials + 10

        await until(sent_and_dialled)
        assert three.connected == []
        assert 3 not in one.connected + two.connected
        assert three.messages == []
        assert all(peer_id != 3 for peer_id, _ in one.messages + two.messages)
        assert len(_errors(caplog)) == said, "it is said again"
    assert any(
        "has the voters 1,2,3, this controller has 2,3" in reason for reason in _errors(caplog)
    )
    assert any(
        "has the voters 2,3, this controller has 1,2,3" in reason for reason in _errors(caplog)
    )
    assert all("format the directory" in reason for reason in _errors(caplog))


async def test_a_peer_that_was_refused_for_its_voters_is_refused_with_a_short_hello_too(
    tmp_path: Path,
) -> None:
    ports = free_ports(2)
    async with running(settings_of(1, ports, tmp_path)) as (one,):
        for voters, short, is_taken in (
            ("2,3", False, False),
            ("", True, False),
            ("1,2", False, True),
            ("", True, True),
        ):
            before = len(one.messages)
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
            writer.write(wire.encode(hello("c", 2, 1, voters=voters, short=short)) + a_vote(7))
            if is_taken:
                await until(lambda before=before: len(one.messages) > before)  # type: ignore[misc]
            else:
                await reader.read()  # its hello, and the end
                assert len(one.messages) == before
            writer.close()
