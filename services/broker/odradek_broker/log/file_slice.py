"""Batches that stay in their file until they are sent: the kernel copies them from the page cache.

Whoever holds one sends it or reads it, once, while the partition is still led in the epoch in which it
was made: below the high watermark a leader's files do not change, but a cut after a lost leadership
may change them. It has a descriptor of its own, given back when it is dropped.
"""

from __future__ import annotations

import errno

from odradek_broker.log.storage import File


class FileSlice:
    """`len` is its size in bytes."""

    __slots__ = ("_file", "_position", "_size_bytes")

    def __init__(self, file: File, position: int, size_bytes: int) -> None:
        self._file = file.duplicate()
        self._position = position
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def __del__(self) -> None:
        self._file.close()

    def send(self, socket_fd: int) -> int:
        """Give the socket as much as it takes without waiting; how many bytes that was.

        Raises OSError: the socket is broken, or the file ends before the slice does.
        """
        sent = 0
        while sent < self._size_bytes:
            try:
                count = self._file.send_to(
                    socket_fd, self._position + sent, self._size_bytes - sent
                )
            except BlockingIOError:
                break
            if not count:
                raise OSError(errno.EIO, "the file ends inside a slice of it")
            sent += count
        return sent

    def read(self, start: int = 0) -> bytes:
        """What follows the first `start` bytes. Raises OSError if the file ends before that."""
        data = self._file.pread(self._size_bytes - start, self._position + start)
        if len(data) != self._size_bytes - start:
            raise OSError(errno.EIO, "the file ends inside a slice of it")
        return data
