"""Assembles frames from the bytes of a connection. A frame takes at most four times the memory of the bytes received.

Bytes that begin a frame are received into `scratch`, a buffer that all connections of the event loop share. Each
connection copies its bytes out of the scratch buffer before another connection receives bytes, so an idle connection
has no buffer of its own. Further bytes of a frame that did not arrive at once go into memory of that frame. This memory
grows with the number of received bytes, never with the value of the length field (CVE-2022-34917).

The connection calls `buffer`, fills the returned buffer, and calls `received`. It then calls `next_frame` as often as
it can begin requests, and at last `settle`, which moves the remaining bytes out of the scratch buffer.
"""

from __future__ import annotations

from typing import Final, Protocol

from odradek_protocol.kafka.frames import FRAME_SIZE, SIZE_BYTES
from odradek_runtime.budget.shares import Shares

SCRATCH_BYTES: Final = 128 * 1024
_GROWTH: Final = 4
_GROWTH_BYTES_MAX: Final = 4 << 20  # the allocation of this many bytes blocks the loop for 2 ms
_FIRST_BYTES: Final = 16 * 1024
_EMPTY: Final = memoryview(b"")


_unpack_size: Final = FRAME_SIZE.unpack_from


class FrameRefused(Exception):
    """The length field of a frame is not positive, or above the limit, so the following bytes cannot be decoded."""

    def __init__(self, message: str, head: bytes) -> None:
        super().__init__(message)
        self.head = head
        """The four bytes of the length field. They may show that the client speaks another protocol."""


class FrameAssembler:
    """Assembles the frames of one connection. `frame_bytes_max` may be raised at any time."""

    __slots__ = ("_arrival", "_filled", "_frame", "_head", "_is_own", "_moved_bytes", "_rest",
                 "_scratch", "_size", "frame_bytes_max", "partial_frames")  # fmt: skip

    def __init__(self, scratch: bytearray, *, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._arrival = scratch
        self._scratch = memoryview(scratch)
        self._rest = _EMPTY  # bytes that were received and do not belong to a returned frame yet
        self._is_own = False  # whether `_rest` is a copy outside of the scratch buffer
        self._head = b""  # 0 to 3 bytes of a frame's length
        self._frame: bytearray | None = None
        self._filled = 0
        self._size = 0
        self._moved_bytes = 0  # how many bytes of the unfinished frame `take_part` has taken
        self.partial_frames = 0
        """The number of frames so far that arrived in several parts."""

    @property
    def is_mid_frame(self) -> bool:
        """Whether a part of a frame has arrived, but not all of it."""
        return self._frame is not None or bool(self._head)

    @property
    def held_bytes(self) -> int:
        """The number of bytes that were received and not yet returned by `next_frame`, in memory or in a file."""
        if self._frame is not None:
            return self._moved_bytes + self._filled
        return len(self._rest) + len(self._head)

    @property
    def memory_bytes(self) -> int:
        """The number of bytes of the unfinished frame that are in memory."""
        return self._filled if self._frame is not None else 0

    @property
    def is_whole(self) -> bool:
        """Whether a frame of which `take_part` removed parts has arrived completely. `restore` must be called next."""
        return self._moved_bytes > 0 and self._filled == self._size

    @property
    def is_moved(self) -> bool:
        """Whether `take_part` removed parts of the frame, and `restore` was not called yet."""
        return self._moved_bytes > 0

    def take_part(self) -> memoryview:
        """Remove and return the bytes of the unfinished frame. The caller stores them elsewhere until `restore`."""
        frame = self._frame
        assert frame is not None, "there is no unfinished frame"
        part = memoryview(frame)[: self._filled]
        self._moved_bytes += self._filled
        self._size -= self._filled
        self._frame = bytearray(min(self._size, _FIRST_BYTES))
        self._filled = 0
        return part

    def restore(self, frame: bytearray) -> None:
        """Put back the complete frame, after `take_part` removed all of its bytes."""
        self._frame = frame
        self._filled = self._size = len(frame)
        self._moved_bytes = 0

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes, which is never empty. Release it before the next call."""
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
        """Return the content of the frame if the `size_bytes` bytes put into the buffer are exactly one frame and no
        other bytes wait. Otherwise change nothing and return None, and the caller calls `received`.
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
        if self._rest:  # this is rare: the transport received more bytes after `pause_reading`
            self._rest = memoryview(bytes(self._rest) + bytes(arrived))
            self._is_own = True
        else:
            self._rest = arrived
            self._is_own = False

    def next_frame(self) -> bytearray | None:
        """Return the content of the next complete frame, or None. The caller owns the content. Raises FrameRefused."""
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
        """Discard the received bytes when the connection closes, because its objects may exist for some time."""
        self._frame = None
        self._moved_bytes = 0
        self._rest = _EMPTY
        self._head = b""

    def _size_of(self, rest: memoryview) -> int:
        size: int = FRAME_SIZE.unpack_from(rest)[0]
        if not 0 < size <= self.frame_bytes_max:
            message = f"a request must have 1 to {self.frame_bytes_max} bytes, but its length field is {size}"
            raise FrameRefused(message, bytes(rest[:SIZE_BYTES]))
        return size


class Resumable(Protocol):
    """The methods of a connection that `ArrivingBytes` and `FrameFile` call."""

    @property
    def owner(self) -> str: ...

    @property
    def is_at_file(self) -> bool:
        """Whether the connection does not read because its frame is being moved to a file or read back from it."""

    def read_on(self) -> None: ...

    def give_up(self, reason: str) -> None: ...


class ArrivingBytes:
    """Limits the bytes of large unfinished frames on all connections together.

    An owner (a principal or an address, see `odradek_runtime.budget.shares`) may use an eighth of `bytes_max`. If an
    owner exceeds its share, its connections in the middle of a large frame stop reading; if all owners together exceed
    `bytes_max`, all connections in the middle of a large frame do. Thus small frames and new clients are still served.
    One of the connections that would have to stop is chosen and may read nevertheless: the one with the fewest bytes,
    of the owner with the fewest bytes. If fewer than `SMALL_BYTES` arrive on the chosen connection in a second, another
    one is chosen. The slow connection is then closed if its owner exceeds the share; without this rule, each connection
    of an owner could, in turn, receive a frame of the largest size and leave the frame unfinished. With the rule, an
    owner uses at most its share and one frame. Above half of a share, or half of `bytes_max`, an arriving large frame
    is stored in a file (`frame_file`), not in memory.
    """

    SMALL_BYTES: Final = 64 * 1024  # connections with fewer buffered bytes are not counted

    __slots__ = ("_chosen", "_chosen_bytes", "_has_refused", "_held", "_muted", "_shares", "_slow")

    def __init__(self, bytes_max: int) -> None:
        self._shares = Shares(total_max=bytes_max, owner_max=max(1, bytes_max // 8))
        self._held: dict[Resumable, tuple[str, int]] = {}
        self._chosen: Resumable | None = None
        self._chosen_bytes = 0
        self._slow: set[Resumable] = set()
        self._muted: set[Resumable] = set()
        self._has_refused = False

    @property
    def total_bytes(self) -> int:
        """The number of counted bytes of all owners together."""
        return self._shares.total

    def may_read(self, connection: Resumable) -> bool:
        """Return whether a connection that has received a part of a large frame may continue to read."""
        self._muted.discard(connection)
        if not self.is_crowded(connection):
            return True
        self._has_refused = True
        if self._chosen is None or not self.is_crowded(self._chosen):
            self._choose()
        return self._chosen is connection

    def mute(self, connection: Resumable) -> None:
        """Note that the broker does not read from this connection for another reason, such as a quota, until `may_read`
        is called for it. It is not chosen meanwhile: it would look slow, and would be closed.
        """
        self._muted.add(connection)
        if self._chosen is connection:
            self._chosen = None
            self._resume()

    def is_crowded(self, connection: Resumable) -> bool:
        """Return whether the connection's owner, or all owners together, exceed their limit."""
        owner, _ = self._held[connection]
        shares = self._shares
        return shares.total > shares.total_max or shares.of(owner) > shares.owner_max

    def is_for_file(self, connection: Resumable) -> bool:
        """Return whether the connection should move its unfinished frame from memory to a file. It should if the frames
        of its owner (a principal or an address), or the frames of all owners together, take more than half of their
        limit.
        """
        owner, _ = self._held[connection]
        shares = self._shares
        return shares.total > shares.total_max // 2 or shares.of(owner) > shares.owner_max // 2

    def hold(self, connection: Resumable, size_bytes: int) -> None:
        """Record how many bytes of unfinished frames a connection has received. The number replaces that of the last
        call.
        """
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
        self._muted.discard(connection)
        if self._chosen is connection:
            self._chosen = None
        self._resume()

    def rotate(self) -> None:
        """Choose another connection to read from if the chosen one has received too little. The listener calls this
        every second.
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
                f"a large request arrives too slowly, and {owner} has more than {self._shares.owner_max} bytes"
                f" of unfinished requests (an eighth of queued.max.request.bytes)"
            )
        self._resume()

    def _choose(self) -> None:
        # Connections that may read anyway are not chosen. Otherwise an owner above its share would wait as long as
        # other owners send large frames.
        willing = (connection for connection in self._held if connection not in self._muted)
        crowded = [connection for connection in willing if self.is_crowded(connection)]
        waiting = [connection for connection in crowded if connection not in self._slow]
        if not waiting:
            self._slow.clear()
            waiting = crowded
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
