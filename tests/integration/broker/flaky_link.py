"""A TCP relay that can silently stop: it accepts bytes and does not deliver them."""

from __future__ import annotations

import asyncio


class FlakyLink:
    """Listens on `port`, and relays bytes to and from the target unless it is a black hole."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.port = 0
        self.target = target
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def black_hole(self) -> None:
        """Drop all bytes from now on. Bytes that were sent before `heal` never arrive."""
        self._open.clear()

    def heal(self) -> None:
        """Relay the bytes of new connections; older connections stay dead."""
        for task in self._tasks:
            task.cancel()
        self._open.set()

    async def stop(self) -> None:
        """End all connections."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._open.wait()
            there, here = await asyncio.open_connection(*self.target)
            try:
                await asyncio.gather(self._pump(reader, here), self._pump(there, writer))
            finally:
                here.close()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self._open.is_set():
                writer.write(data)
                await writer.drain()
