"""The limit of open files and connections of a process.

Shells and systemd start programs with a limit of 1,024 unless they raise it; most systems allow half a
million. A broker has a file open for each connection and, up to a bound, for each partition in use.
"""

from __future__ import annotations

import os
import resource
from typing import Final

_CONNECTIONS_OF_UNLIMITED: Final = 10_000
_LOG_FILES_OF_UNLIMITED: Final = 100_000


def raise_open_files_limit() -> int:
    """Raise the limit as far as the system allows, as Java does for its programs. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS reports no hard limit, and refuses this value
        return soft
    return hard


def reserved_for_logs(limit: int) -> int:
    """Return how many of `limit` descriptors connections must leave free, so that logs can still open files."""
    return min(64, limit // 8)


def is_scarce(descriptor: int) -> bool:
    """Return whether a descriptor that was just opened is one of those that connections must leave free.

    The system assigns the lowest free number, so all lower ones are in use.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return descriptor >= limit - reserved_for_logs(limit)


def grpc_connections_max(listeners: int) -> int:
    """Return the most connections that each of `listeners` gRPC listeners may have. Together they get a quarter of the
    process's descriptors.

    gRPC accepts connections itself, and each costs a descriptor before its client is known.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return _CONNECTIONS_OF_UNLIMITED
    return max(limit // 4 // max(listeners, 1), 1)


def log_files_max() -> int:
    """Return how many files the logs of a process may keep open between uses: three eighths of its descriptors.

    gRPC connections get a quarter. Three eighths are left for Kafka's connections, syncs and responses.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _LOG_FILES_OF_UNLIMITED if limit == resource.RLIM_INFINITY else limit * 3 // 8


def has_room_for_partitions(descriptor: int) -> bool:
    """Return whether a new partition may keep a descriptor of this number.

    A quarter of the limit stays free for other uses.
    """
    return descriptor < resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4


def descriptors_wanted(*, partitions: int, connections_max: int) -> int:
    """Return how many descriptors a process needs to keep the files of `partitions` partitions open and to accept
    `connections_max` connections.
    """
    return max((partitions + 100) * 8 // 3, partitions + connections_max + 200)


class DescriptorReserve:
    """A few descriptors that are held in reserve. When the process has no other one left, one of them is closed.

    Any thread may call `spend`; a timer calls `fill`.
    """

    __slots__ = ("_held", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[int] = []

    def fill(self) -> None:
        """Open descriptors up to the reserve's size, as far as the system allows."""
        while len(self._held) < self._size:
            try:
                descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return
            self._held.append(descriptor)

    def spend(self) -> bool:
        """Close one descriptor of the reserve, so that a file or socket can be opened. Returns False if the reserve
        is empty.
        """
        try:
            os.close(self._held.pop())
        except IndexError:
            return False
        return True
