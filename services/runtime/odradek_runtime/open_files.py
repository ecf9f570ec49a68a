"""The limit of file descriptors of a process, and its division between connections and log files.

Shells and systemd start programs with a limit of 1,024 by default. Most systems allow a program to raise its limit to
half a million. A broker needs a descriptor for each connection and, up to a maximum, for each partition in use.
"""

from __future__ import annotations

import os
import resource
from typing import Final

_CONNECTIONS_OF_UNLIMITED: Final = 10_000
_LOG_FILES_OF_UNLIMITED: Final = 100_000


def raise_open_files_limit() -> int:
    """Raise the process's limit of file descriptors as far as the system allows, as Java does. Return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS reports no hard limit, and refuses this value
        return soft
    return hard


def reserved_for_logs(limit: int) -> int:
    """Return the number of descriptors, of `limit` in all, that connections must leave free for log files."""
    return min(64, limit // 8)


def is_scarce(descriptor: int) -> bool:
    """Return whether a connection whose descriptor was just opened must be closed, to keep descriptors for log files.

    The system assigns the lowest free number, so all descriptors with lower numbers are in use.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return descriptor >= limit - reserved_for_logs(limit)


def grpc_connections_max(listeners: int) -> int:
    """Return the maximum number of connections of each gRPC listener, for a process with this many gRPC listeners.

    All gRPC listeners together may use a quarter of the process's descriptors. gRPC accepts connections itself, so each
    connection uses a descriptor before its client is known.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return _CONNECTIONS_OF_UNLIMITED
    return max(limit // 4 // max(listeners, 1), 1)


def log_files_max() -> int:
    """Return how many files the partition logs of a process may keep open: three eighths of its descriptors.

    gRPC connections may use a quarter. The other three eighths are for Kafka connections, and for files that are opened
    for a sync or a response.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _LOG_FILES_OF_UNLIMITED if limit == resource.RLIM_INFINITY else limit * 3 // 8


def has_room_for_partitions(descriptor: int) -> bool:
    """Return whether a new partition may keep a file open whose descriptor has this number.

    A quarter of the process's descriptors stays free for other uses. The system assigns the lowest free number, so the
    number of a new descriptor shows how many are in use.
    """
    return descriptor < resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4


def descriptors_wanted(*, partitions: int, connections_max: int) -> int:
    """Return how many descriptors a process needs to keep the files of `partitions` partitions open and to accept
    `connections_max` connections.
    """
    return max((partitions + 100) * 8 // 3, partitions + connections_max + 200)


class DescriptorReserve:
    """Some descriptors of /dev/null, one of which is closed when the process needs a descriptor and has none free.

    Any thread may call `spend`. A timer calls `fill`.
    """

    __slots__ = ("_held", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[int] = []

    def fill(self) -> None:
        """Open descriptors until the reserve has its full size or the system refuses another one."""
        while len(self._held) < self._size:
            try:
                descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return
            self._held.append(descriptor)

    def spend(self) -> bool:
        """Close one descriptor of the reserve, so that a file or socket can be opened. Return False if the reserve is
        empty.
        """
        try:
            os.close(self._held.pop())
        except IndexError:
            return False
        return True
