"""Lines as they come: from a file, a pipe, or somebody who types."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from typing import Final

from odradek.errors import RecordTooLarge

_CHUNK_BYTES: Final = 256 * 1024
_CHUNKS_WAITING_MAX: Final = 4


async def lines_of(descriptor: int, *, line_bytes_max: int) -> AsyncIterator[list[bytes]]:
    """The lines that have come since last time, without their ends; stops at end of file.

    Raises RecordTooLarge for a line that has no end within `line_bytes_max`, and OSError.

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
            put = chunks.put(chunk)
            try:
                asyncio.run_coroutine_threadsafe(put, loop).result()
            except (RuntimeError, CancelledError):  # the loop has ended, or is about to
                put.close()
                return
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=read, name="read input", daemon=True).start()
    rest = bytearray()  # of the last line, whose end is yet to come
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        first, *others = chunk.split(b"\n")
        rest += first
        if len(rest) > line_bytes_max:
            raise RecordTooLarge(f"a line of the input has more than {line_bytes_max} bytes")
        if others:
            lines = [bytes(rest), *others[:-1]]
            rest = bytearray(others[-1])
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [bytes(rest).removesuffix(b"\r")]
