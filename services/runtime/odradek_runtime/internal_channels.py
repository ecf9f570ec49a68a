"""Channels to other processes of the cluster, one a peer, that outlive addresses and certificates.

A gRPC channel shows the certificate that it was made with for as long as it lives, however often it
connects again: when that one has expired, no peer lets it in any more. So a channel is replaced
when the files have changed; calls that are under way on the old one have a while to end.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import grpc.aio

from odradek_runtime.grpc_endpoints import internal_channel
from odradek_runtime.tls import TlsFiles

REPLACED_GRACE_S: Final = 10.0  # longer than any unary call; a stream begins again


@dataclass(frozen=True, slots=True)
class _Opened:
    host: str
    port: int
    stamp: tuple[int, ...]
    channel: grpc.aio.Channel


class InternalChannels:
    """Opened at first use; lives on one event loop."""

    def __init__(self, tls: TlsFiles | None) -> None:
        self._tls = tls
        self._opened: dict[str, _Opened] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def channel(self, peer: str, host: str, port: int) -> grpc.aio.Channel:
        """The channel to `peer` (`broker-3`, `controller-1`); another one where something changed."""
        found = self._opened.get(peer)
        stamp = self._stamp(found)
        if found is not None:
            if (found.host, found.port, found.stamp) == (host, port, stamp):
                return found.channel
            self._close_later(found.channel)
        channel = internal_channel(host, port, self._tls, peer=peer)
        self._opened[peer] = _Opened(host, port, stamp, channel)
        return channel

    async def close(self) -> None:
        """Close all channels; calls under way end."""
        opened, self._opened = list(self._opened.values()), {}
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        for one in opened:
            await one.channel.close()

    def _stamp(self, found: _Opened | None) -> tuple[int, ...]:
        if self._tls is None:
            return ()
        try:
            return self._tls.stamp()
        except OSError:  # being replaced just now
            if found is None:
                raise
            return found.stamp

    def _close_later(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.get_running_loop().create_task(
            channel.close(REPLACED_GRACE_S), name="close a replaced channel"
        )
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
