"""Lines as they come: from a file, a pipe, or somebody who types."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from typing import Final

_CHUNK_BYTES: Final = 256 * 1024
_CHUNKS_WAITING_MAX: Final = 4


async def lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """The lines that have come since last time, without their ends; stops at end of file.

    Reading blocks, so a thread does it: what came before is sent while the next line is still being typed. A daemon,
    because a terminal may never give it another line; `os.read`, because `sys.stdin` would be locked at the end.
    """
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_CHUNKS_WAITING_MAX)
    loop = asyncio.get_running_loop()

    def read() -> None:
        while True:
            chunk: bytes | OSError
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except RuntimeError:  # the loop has ended
                return
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=read, name="read input", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        *lines, rest = (rest + chunk).split(b"\n")
        yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]
