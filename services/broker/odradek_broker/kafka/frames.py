"""Assembles frames from the bytes of a connection. A frame takes at most four times the memory of the bytes received.

Bytes are received in two ways. Between frames they go into `scratch`, a buffer that all connections of the loop share:
each takes its bytes out of it before another one receives, so an idle connection has no buffer at all. Within a frame
that did not arrive whole they go into the frame's own memory, which grows as it fills, never by what the length field
says (CVE-2022-34917).

The owner calls `buffer`, fills it, calls `received`, then `next_frame` as often as it wants to begin requests, then
`settle`, which moves the remaining bytes out of the scratch buffer.
"""

from __future__ import annotations

from typing import Final, Protocol

from odradek_protocol.kafka.frames import FRAME_SIZE, SIZE_BYTES
from odradek_runtime.budget.shares import Shares

SCRATCH_BYTES: Final = 128 * 1024
_GROWTH: Final = 4
_GROWTH_BYTES_MAX: Final = 4 << 20  # most bytes added at once, which blocks the loop for 2 ms
_FIRST_BYTES: Final = 16 * 1024
_EMPTY: Final = memoryview(b"")


_unpack_size: Final = FRAME_SIZE.unpack_from


class FrameRefused(Exception):
    """The length is negative or beyond the limit: nothing after it can be decoded."""

    def __init__(self, message: str, head: bytes) -> None:
        super().__init__(message)
        self.head = head
        """The four bytes that were read as a length. They may be the beginning of another protocol."""


class FrameAssembler:
    """Assembles the frames of one connection. `frame_bytes_max` may be raised at any time."""

    __slots__ = ("_arrival", "_filled", "_frame", "_head", "_is_own", "_moved_bytes", "_rest",
                 "_scratch", "_size", "frame_bytes_max", "partial_frames")  # fmt: skip

    def __init__(self, scratch: bytearray, *, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._arrival = scratch
        self._scratch = memoryview(scratch)
        self._rest = _EMPTY  # bytes that were received and are not read yet
        self._is_own = False  # whether `_rest` is a copy outside of the scratch buffer
        self._head = b""  # 0 to 3 bytes of a frame's length
        self._frame: bytearray | None = None
        self._filled = 0
        self._size = 0
        self._moved_bytes = 0  # how many bytes of the unfinished frame `take_part` has taken
        self.partial_frames = 0
        """The number of frames so far that did not arrive whole at once."""

    @property
    def is_mid_frame(self) -> bool:
        """Whether a part of a frame has arrived, but not all of it."""
        return self._frame is not None or bool(self._head)

    @property
    def held_bytes(self) -> int:
        """The bytes received and not yet returned by `next_frame`."""
        if self._frame is not None:
            return self._moved_bytes + self._filled
        return len(self._rest) + len(self._head)

    @property
    def memory_bytes(self) -> int:
        """The bytes of the unfinished frame that are in memory."""
        return self._filled if self._frame is not None else 0

    @property
    def is_whole(self) -> bool:
        """Whether a frame whose first parts were taken has arrived completely, so that it waits for `restore`."""
        return self._moved_bytes > 0 and self._filled == self._size

    @property
    def is_moved(self) -> bool:
        """Whether parts of the frame were taken and not yet restored."""
        return self._moved_bytes > 0

    def take_part(self) -> memoryview:
        """Remove and return the bytes of the unfinished frame, which the caller keeps elsewhere until `restore`."""
        frame = self._frame
        assert frame is not None, "there is no unfinished frame"
        part = memoryview(frame)[: self._filled]
        self._moved_bytes += self._filled
        self._size -= self._filled
        self._frame = bytearray(min(self._size, _FIRST_BYTES))
        self._filled = 0
        return part

    def restore(self, frame: bytearray) -> None:
        """Put back the whole frame after all of its bytes were taken."""
        self._frame = frame
        self._filled = self._size = len(frame)
        self._moved_bytes = 0

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes, which is never empty. Release it before calling anything else."""
        frame = self._frame
        if frame is None and not self._head:
            return self._scratch[:]
        if frame is not None:
            if self._filled == len(frame):
                room = min(self._size, _GROWTH * self._filled, self._filled + _GROWTH_BYTES_MAX)
                frame.extend(bytes(room - len(frame)))
            return memoryview(frame)[self._filled :]
        kept = len(self._head)
        self._scratch[:kept] = self._head
        return self._scratch[kept:]

    def received_alone(self, size_bytes: int) -> bytearray | None:
        """Return the content of the frame if this number of bytes, which were put into the buffer, are exactly one and
        no others are held. In any other case record nothing and return None: the caller then calls `received`.
        """
        if self._frame is not None or self._head or self._rest or size_bytes <= SIZE_BYTES:
            return None
        arrival = self._arrival
        (size,) = _unpack_size(arrival)
        if size != size_bytes - SIZE_BYTES or size > self.frame_bytes_max:
            return None
        return arrival[SIZE_BYTES:size_bytes]

    def received(self, size_bytes: int) -> None:
        """Record that this number of bytes was put into the buffer."""
        if self._frame is not None:
            self._filled += size_bytes
            return
        arrived = self._scratch[: len(self._head) + size_bytes]
        self._head = b""
        if self._rest:  # this is rare: the transport read more after it was told to pause
            self._rest = memoryview(bytes(self._rest) + bytes(arrived))
            self._is_own = True
        else:
            self._rest = arrived
            self._is_own = False

    def next_frame(self) -> bytearray | None:
        """Return the content of the next whole frame, which the caller may keep. Raises FrameRefused."""
        frame = self._frame
        if frame is not None:
            if self._filled < self._size or self._moved_bytes:
                return None
            self._frame = None
            return frame
        rest = self._rest
        if len(rest) < SIZE_BYTES:
            return None
        end = SIZE_BYTES + self._size_of(rest)
        if len(rest) < end:
            return None
        self._rest = rest[end:]
        return bytearray(rest[SIZE_BYTES:end])

    def settle(self) -> None:
        """Copy the bytes that `next_frame` has not returned from the scratch buffer to memory of this connection."""
        rest = self._rest
        if self._frame is not None or not rest:
            return
        if len(rest) < SIZE_BYTES:
            self._head = bytes(rest)
            self._rest = _EMPTY
            return
        size = self._size_of(rest)
        have = len(rest) - SIZE_BYTES
        if have >= size:
            if not self._is_own:
                self._rest = memoryview(bytes(rest))
                self._is_own = True
            return
        self._frame = bytearray(min(size, max(_GROWTH * have, _FIRST_BYTES)))
        self._frame[:have] = rest[SIZE_BYTES:]
        self.partial_frames += 1
        self._filled = have
        self._size = size
        self._rest = _EMPTY

    def drop(self) -> None:
        """Discard the received bytes, because the connection closes and its objects may exist for some time."""
        self._frame = None
        self._moved_bytes = 0
        self._rest = _EMPTY
        self._head = b""

    def _size_of(self, rest: memoryview) -> int:
        size: int = FRAME_SIZE.unpack_from(rest)[0]
        if not 0 < size <= self.frame_bytes_max:
            message = (
                f"a request of {size} bytes is larger than the limit of {self.frame_bytes_max}"
            )
            raise FrameRefused(message, bytes(rest[:SIZE_BYTES]))
        return size


class Resumable(Protocol):
    """A connection that can pause and resume reading, and close."""

    @property
    def owner(self) -> str: ...

    @property
    def is_at_file(self) -> bool:
        """Whether the connection does not read because a part of its frame is being moved to a file."""

    def read_on(self) -> None: ...

    def give_up(self, reason: str) -> None: ...


class ArrivingBytes:
    """The memory of large frames that are not whole yet, on all connections together.

    An owner (`odradek_runtime.budget.shares`) may hold an eighth of it. Beyond that, or when all of it is held,
    connections in the middle of a large frame stop reading, so that small frames and new clients get through. Only
    one of them reads on: among the connections of the owner that holds least, the one that holds least. If less than
    `SMALL_BYTES` arrive on it in a second, another one has its turn; if its owner holds more than its share, the
    connection closes. Without that last rule, each connection of an owner in its turn could add a frame of the
    largest size and leave it unfinished. With it an owner holds at most its share and one frame. From half a share
    on, a large frame that goes on arriving is kept in a file (`frame_file`), not in memory.
    """

    SMALL_BYTES: Final = 64 * 1024  # smaller amounts that a connection holds are not counted

    __slots__ = ("_chosen", "_chosen_bytes", "_has_refused", "_held", "_shares", "_slow")

    def __init__(self, bytes_max: int) -> None:
        self._shares = Shares(total_max=bytes_max, owner_max=max(1, bytes_max // 8))
        self._held: dict[Resumable, tuple[str, int]] = {}
        self._chosen: Resumable | None = None
        self._chosen_bytes = 0
        self._slow: set[Resumable] = set()
        self._has_refused = False

    @property
    def total_bytes(self) -> int:
        """The bytes held in all."""
        return self._shares.total

    def may_read(self, connection: Resumable) -> bool:
        """Whether a connection that has received a part of a large frame may continue to read."""
        if not self.is_crowded(connection):
            return True
        self._has_refused = True
        if self._chosen is None:
            self._choose()
        return self._chosen is connection

    def is_crowded(self, connection: Resumable) -> bool:
        """Whether the connection's owner, or all owners together, hold more bytes than they may."""
        owner, _ = self._held[connection]
        shares = self._shares
        return shares.total > shares.total_max or shares.of(owner) > shares.owner_max

    def is_for_file(self, connection: Resumable) -> bool:
        """Whether the connection moves its frame to a file: its owner, or all owners together, hold half of their
        limit.
        """
        owner, _ = self._held[connection]
        shares = self._shares
        return shares.total > shares.total_max // 2 or shares.of(owner) > shares.owner_max // 2

    def hold(self, connection: Resumable, size_bytes: int) -> None:
        """Record how many bytes a connection holds."""
        counted = size_bytes if size_bytes > self.SMALL_BYTES else 0
        entry = self._held.get(connection)
        if entry is None:
            if not counted:
                return
            entry = (connection.owner, 0)
        owner, before = entry
        self._shares.give_back(owner, before)
        self._shares.take(owner, counted)
        if counted:
            self._held[connection] = (owner, counted)
            return
        del self._held[connection]
        self._slow.discard(connection)
        if self._chosen is connection:
            self._chosen = None
        self._resume()

    def rotate(self) -> None:
        """Let another connection read on if little arrives on the current one. The listener calls this every
        second.
        """
        slow = self._chosen
        if not self._has_refused or slow is None or slow.is_at_file:
            return
        owner, size_bytes = self._held[slow]
        if size_bytes - self._chosen_bytes >= self.SMALL_BYTES:
            self._chosen_bytes = size_bytes
            return
        self._slow.add(slow)
        self._chosen = None
        if self._shares.of(owner) > self._shares.owner_max:
            slow.give_up(
                f"a large request arrives too slowly, and {owner} holds more than its share of"
                f" {self._shares.owner_max} bytes of such frames"
            )
        self._resume()

    def _choose(self) -> None:
        waiting = [connection for connection in self._held if connection not in self._slow]
        if not waiting:
            self._slow.clear()
            waiting = list(self._held)
        self._chosen = min(waiting, key=self._rank)
        self._chosen_bytes = self._held[self._chosen][1]

    def _rank(self, connection: Resumable) -> tuple[int, int]:
        owner, size_bytes = self._held[connection]
        return self._shares.of(owner), size_bytes

    def _resume(self) -> None:
        if self._has_refused:
            self._has_refused = False
            for connection in tuple(self._held):
                connection.read_on()
