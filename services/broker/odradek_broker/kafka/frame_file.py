"""The bytes of a large unfinished frame, kept in a file instead of in memory.

A client may begin a frame of the largest allowed size and never finish it. Each owner (a principal or an address, see
`odradek_runtime.budget.shares`) has a share of the memory for unfinished frames. While the connections of an owner use
more than half of its share, or all connections more than half of the memory, an arriving large frame is moved to a file
part by part, and read back when it is complete.
Unfinished frames thus use no more memory than the shares allow, and large requests of honest clients still succeed. The
file has no name, so the operating system deletes it when the process dies. All file calls run in a thread, also the
close: it frees the file's pages, which takes 8 ms for 100 MiB, and longer while they are being written to the disk.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from odradek_broker.kafka.frames import FrameAssembler, Resumable

if TYPE_CHECKING:
    from odradek_broker.kafka.connection_owner import ConnectionOwner

PART_BYTES_MIN: Final = 4 << 20
"""A frame is moved to its file once it has this many bytes in memory."""
_READ_BYTES: Final = 4 << 20


class FrameFile:
    """The file of one connection's unfinished frame. The connection reads nothing from its socket while `is_busy`."""

    __slots__ = ("_connection", "_file", "_frames", "_is_closed", "_on_done", "_owner", "is_busy")

    def __init__(
        self,
        connection: Resumable,
        frames: FrameAssembler,
        owner: ConnectionOwner,
        on_done: Callable[[], None],
    ) -> None:
        """`on_done` is called after each successful file call. A failed call closes the connection."""
        self._connection = connection
        self._frames = frames
        self._owner = owner
        self._on_done = on_done
        self._file: BinaryIO | None = None
        self._is_closed = False
        self.is_busy = False

    def may_read(self, wants: bool) -> bool:
        """Return whether the connection may continue to read its large frame. If a file call must come first, begin
        that call.
        """
        if self.is_busy:
            return False
        frames, arriving = self._frames, self._owner.arriving
        if frames.is_whole:
            self._advance()
            return False
        if not wants:
            arriving.mute(self._connection)
            return False
        if not arriving.may_read(self._connection):
            return False
        if frames.memory_bytes >= PART_BYTES_MIN and arriving.is_for_file(self._connection):
            self._advance()
            return False
        return True

    def _advance(self) -> None:
        """Move the bytes that have arrived to the file. If the frame has arrived completely, read it back
        into memory.
        """
        self.is_busy = True
        is_whole = self._frames.is_whole
        part = self._frames.take_part()
        work = asyncio.get_running_loop().run_in_executor(
            None, self._restored if is_whole else self._append, part
        )
        work.add_done_callback(self._done)

    def close(self) -> None:
        """Delete the file, in a thread, now or when the file call in progress has returned."""
        self._is_closed = True
        if not self.is_busy:
            self._clear()

    def _clear(self) -> None:
        if self._file is not None:
            asyncio.get_running_loop().run_in_executor(None, self._file.close)
            self._file = None

    def _append(self, part: memoryview) -> None:
        if self._file is None:
            unnamed: object = tempfile.TemporaryFile(buffering=0, dir=self._owner.frame_folder)  # noqa: SIM115 - closed by `close`
            self._file = cast("BinaryIO", unnamed)
        written = 0
        while written < len(part):
            written += self._file.write(part[written:])

    def _restored(self, rest: memoryview) -> bytearray:
        assert self._file is not None, "a frame is read back only after a part of it was moved"
        whole = bytearray()
        self._file.seek(0)
        # The file is read in pieces, because an allocation of 100 MiB would hold the interpreter's lock for tens of ms.
        while piece := self._file.read(_READ_BYTES):
            whole += piece
        self._file.close()
        self._file = None
        whole += rest
        return whole

    def _done(self, work: asyncio.Future[bytearray | None]) -> None:
        self.is_busy = False
        if self._is_closed or work.cancelled():
            self.close()
        elif (error := work.exception()) is not None:
            folder = self._owner.frame_folder
            self._connection.give_up(
                f"a large request cannot be stored in a file in {folder}: {error}"
            )
        else:
            whole = work.result()
            if whole is not None:
                self._frames.restore(whole)
            self._on_done()
