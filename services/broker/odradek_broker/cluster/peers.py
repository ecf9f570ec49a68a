"""Channels to the other brokers' gRPC listeners, for what only they can answer."""

from __future__ import annotations

import grpc.aio

from odradek_protocol.identity import BrokerId
from odradek_runtime.grpc_endpoints import internal_channel
from odradek_runtime.tls import TlsFiles


class PeerChannels:
    """One channel per broker and address, opened at first use."""

    def __init__(self, tls: TlsFiles | None) -> None:
        self._tls = tls
        self._channels: dict[BrokerId, tuple[str, int, grpc.aio.Channel]] = {}

    async def channel(self, broker_id: BrokerId, host: str, port: int) -> grpc.aio.Channel:
        """The channel to a broker; a new one when its address changed."""
        found = self._channels.get(broker_id)
        if found is not None:
            if found[:2] == (host, port):
                return found[2]
            await found[2].close()
        channel = internal_channel(host, port, self._tls, peer=f"broker-{broker_id}")
        self._channels[broker_id] = (host, port, channel)
        return channel

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = self._channels, {}
        for _, _, channel in channels.values():
            await channel.close()
