"""How many files and connections this process may have open.

Shells and systemd give programs 1,024 unless they ask for more, though most systems allow them half a
million. A broker has a file open for each partition and one for each connection.
"""

from __future__ import annotations

import os
import resource
from typing import Final

_CONNECTIONS_OF_UNLIMITED: Final = 10_000


def raise_open_files_limit() -> int:
    """As high as the system lets us, as Java does for its programs; the limit from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS names no limit, and takes none
        return soft
    return hard


def reserved_for_logs(limit: int) -> int:
    """How many descriptors of that limit no connection may take: logs need some to go on."""
    return min(64, limit // 8)


def is_scarce(descriptor: int) -> bool:
    """Whether a descriptor just opened is one of those that no connection may take.

    The system gives out the lowest free number, so all below it are in use.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return descriptor >= limit - reserved_for_logs(limit)


def grpc_connections_max(listeners: int) -> int:
    """How many connections each of so many gRPC listeners may have: all of them together a quarter of the limit.

    gRPC accepts by itself, and a connection costs it a descriptor before anybody knows whose it is.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return _CONNECTIONS_OF_UNLIMITED
    return max(limit // 4 // max(listeners, 1), 1)


def has_room_for_partitions(descriptor: int) -> bool:
    """Whether a new partition may keep a descriptor of this number: a quarter is left for everything else."""
    return descriptor < resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4


def descriptors_wanted(*, partitions: int, connections_max: int) -> int:
    """The limit under which so many partitions and connections have what they need."""
    return max((partitions + 100) * 4 // 3, partitions + connections_max + 200)


class DescriptorReserve:
    """A few descriptors that are held back, to be given up when the process has no other left.

    `spend` in any thread, `fill` by a timer.
    """

    __slots__ = ("_held", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[int] = []

    def fill(self) -> None:
        """Hold as many as can be had."""
        while len(self._held) < self._size:
            try:
                descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return
            self._held.append(descriptor)

    def spend(self) -> bool:
        """Give one up, so that something else can be opened; false if none is left."""
        try:
            os.close(self._held.pop())
        except IndexError:
            return False
        return True
