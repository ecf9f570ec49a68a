"""The bounded number of file descriptors that the logs of one storage keep open between uses.

Each log writes to its last segment, and readers use earlier segments. A segment opens its file at the first use and
keeps the descriptor for the next use. If there are more partitions than the process may have open files, descriptors
are closed, and a file is opened again by its path at the next use.

    clean    a sync covered all bytes of the file     closed first; among the clean files, the one that was opened or
                                                      synced longest ago
    dirty    the file has bytes that no sync covered  synced before it is closed

A dirty file must not be closed without a sync. When the kernel fails to write its pages back, it marks the pages clean
and reports the error to the descriptors that are open, or to a descriptor that is opened later, as long as the kernel
keeps the inode in memory. A sync through a descriptor that is opened even later would succeed although bytes are lost.
`Upkeep` syncs all unsynced logs on a disk thread while more than half of the files are dirty (`is_crowded`). If all
files are dirty nevertheless, one file is synced on the event loop: a broker with so few descriptors writes at the speed
of its disk, but loses nothing.

The limit counts a segment from the moment at which a log owns it. Only the event loop uses the descriptors of these
segments, because work on disk threads has descriptors of its own (`Segment.handle`). So no descriptor is closed while a
thread reads or writes through it. The lock is needed at the end of the process, when disk threads sync and close logs.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

CHANCES_MAX: Final = 8
T = TypeVar("T")


class Segment(Protocol):
    """The part of `segments.segment.Segment` that this cache uses."""

    size_bytes: int

    @property
    def is_dirty(self) -> bool:
        """Whether the file has bytes that are not synced."""

    def sync(self) -> None:
        """Sync the file in this thread. Raises OSError."""

    def close(self) -> None:
        """Close the file descriptor, and call `OpenFiles.closed`."""


class OpenFiles:
    """The segments that have an open descriptor: at most `files_max()`.

    `on_sync_failed` is called with the error if the sync of a dirty file failed. The callback must take the data
    directory offline, because the error may concern another log than the one that needs the descriptor.
    """

    __slots__ = ("_clean", "_dirty", "_files_max", "_newest", "lock", "on_sync_failed")

    def __init__(self, files_max: Callable[[], int]) -> None:
        self.lock: Final = threading.RLock()
        self.on_sync_failed: Callable[[OSError], object] | None = None
        self._files_max = files_max
        self._clean: dict[Segment, None] = {}
        # Dirty segments, in the order in which they are considered for closing. The value is the file's size when the
        # segment was last put at the end.
        self._dirty: dict[Segment, int] = {}
        self._newest: Segment | None = None

    def __len__(self) -> int:
        return len(self._clean) + len(self._dirty)

    @property
    def is_crowded(self) -> bool:
        """Whether more than half of the files that may be open are dirty (unsynced), so that logs should be synced
        earlier than their age and size require.
        """
        return len(self._dirty) * 2 > max(self._files_max(), 1)

    def make_room(self) -> None:
        """Close files until one more may be kept. Raises OSError."""
        files_max = max(self._files_max(), 1)
        with self.lock:
            while len(self) >= files_max:
                self._close_one()

    def open(self, opening: Callable[[], T]) -> T:
        """Close files until one more may be opened, and call `opening`. The caller then calls `opened`.

        If the process has no descriptor left, clean files are closed, one after the other, and `opening` is called
        again. Raises OSError.
        """
        with self.lock:
            self.make_room()
            while True:
                try:
                    return opening()
                except OSError as error:
                    if error.errno != errno.EMFILE or not self._clean:
                        raise
                next(iter(self._clean)).close()

    def opened(self, segment: Segment) -> None:
        """Count the open file of a segment among those that `OpenFiles` may close to stay below its limit."""
        with self.lock:
            if segment.is_dirty:
                self._dirty[segment] = segment.size_bytes
            else:
                self._clean[segment] = None
            self._newest = segment

    def written(self, segment: Segment) -> None:
        """Record that a clean segment is about to be written to, so that it is dirty from now on."""
        with self.lock:
            self._clean.pop(segment, None)
            self._dirty[segment] = segment.size_bytes

    def synced(self, segment: Segment) -> None:
        """Record that a sync covered all bytes of a segment, so that it is clean from now on."""
        with self.lock:
            if self._dirty.pop(segment, None) is not None:
                self._clean[segment] = None

    def closed(self, segment: Segment) -> None:
        """Record that a segment has closed its file."""
        with self.lock:
            self._clean.pop(segment, None)
            self._dirty.pop(segment, None)

    def _close_one(self) -> None:
        """Close the clean file that was opened or synced longest ago. If no file is clean, sync and close a dirty one.
        Raises OSError.
        """
        if self._clean:
            next(iter(self._clean)).close()
            return
        segment = self._oldest_dirty()
        try:
            if segment.is_dirty:
                segment.sync()
        except OSError as error:
            # The kernel reports this error only once, so the callback must get it now.
            if self.on_sync_failed is not None:
                self.on_sync_failed(error)
            raise
        segment.close()

    def _oldest_dirty(self) -> Segment:
        """Return the dirty segment to close: the first one that was not written to since it was put at the end of
        `_dirty`. Others are put at the end again (a second chance), but at most CHANCES_MAX of them.
        """
        newest = self._newest
        if newest is not None and newest in self._dirty:
            # The write for which the newest segment was opened does not count as a later write.
            self._dirty[newest] = newest.size_bytes
        for _ in range(CHANCES_MAX):
            segment, size_bytes = next(iter(self._dirty.items()))
            if segment.size_bytes == size_bytes:
                break
            del self._dirty[segment]
            self._dirty[segment] = segment.size_bytes
        return next(iter(self._dirty))
