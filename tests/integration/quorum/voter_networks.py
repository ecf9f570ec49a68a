"""The networks of voters without the voters: they listen, connect, and record the messages that they receive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.network.transport import VoterNetwork
from odradek_metadata_quorum.network.wire import Message
from odradek_metadata_quorum.settings import QuorumSettings

WAIT_S_MAX: Final = 60.0  # so high that a slow machine does not exceed it


class Recorded:
    """A network and everything that it reported."""

    def __init__(self, settings: QuorumSettings) -> None:
        self.messages: list[tuple[int, Message]] = []
        self.connected: list[int] = []
        self.disconnected: list[int] = []
        self.network = VoterNetwork(
            settings,
            on_message=lambda peer_id, message: self.messages.append((peer_id, message)),
            on_connected=self.connected.append,
            on_disconnected=self.disconnected.append,
        )


def settings_of(node_id: int, ports: list[int], tmp_path: Path, **other: Any) -> QuorumSettings:
    return QuorumSettings(
        node_id=node_id,
        cluster_id="c",
        voters={number + 1: ("127.0.0.1", port) for number, port in enumerate(ports)},
        data_dir=tmp_path / f"data-{node_id}",
        listen_port=ports[node_id - 1],
        **other,
    )


@asynccontextmanager
async def running(*settings: QuorumSettings) -> AsyncIterator[list[Recorded]]:
    """Run networks that listen and connect to each other."""
    networks = [Recorded(one) for one in settings]
    async with asyncio.TaskGroup() as tasks:
        stop = asyncio.Event()

        async def dial() -> None:
            async with asyncio.TaskGroup() as diallers:
                for recorded in networks:
                    recorded.network.start_dialling(diallers)

        for recorded in networks:
            await recorded.network.listen()
        dialling = tasks.create_task(dial())
        try:
            yield networks
        finally:
            stop.set()
            dialling.cancel()
            for recorded in networks:
                await recorded.network.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():  # noqa: ASYNC110  conditions of other objects, no event to wait for
            await asyncio.sleep(0.005)


def a_vote(term: int) -> bytes:
    return wire.encode({"type": wire.RESPONSE_VOTE, "term": term})
