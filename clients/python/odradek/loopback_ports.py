"""Chooses free ports on loopback for the processes of a cluster.

Another program could bind a chosen port before the cluster's process listens on this port. Programs that start clusters
at the same time therefore choose ports from separate blocks. A block belongs to the program that has bound its first
port, which is used for nothing else.
"""

from __future__ import annotations

import random
import socket
import threading
from collections import deque
from typing import Final

# Ports below Linux's range for outgoing connections, so that no connection takes a process's port while the process
# restarts.
_PORT_MIN: Final = 15_000
_PORT_MAX: Final = 32_000
_BLOCK_PORTS: Final = 100

_lock = threading.Lock()
# Ports of the reserved blocks, except the first port of each block. The least recently used port is first.
_ports: deque[int] = deque()


def free_ports(count: int, *, base_port: int = 0) -> list[int]:
    """Return `count` free ports on loopback. If `base_port` is not 0, the ports are consecutive and begin with it.

    Raises:
        OSError: one of the consecutive ports is in use, or there are not enough free ports.
    """
    if base_port:
        ports = [base_port + i for i in range(count)]
        for port in ports:
            if not _is_free(port):
                raise OSError(
                    f"port {port} on 127.0.0.1 is in use: stop the program that uses it, "
                    f"or choose another --base-port (0: free ports)"
                )
        return ports
    with _lock:
        return _free_of_our_blocks(count)


def hold_if_all_free(ports: list[int], holder: int) -> bool:
    """If all of `ports` are free, reserve them until this program ends, and return True. Otherwise return False.

    `holder` is a port that nothing else uses. The program that has bound `holder` owns `ports`, so two programs that
    start at the same time cannot both reserve them.
    """
    with socket.socket() as lock:
        try:
            lock.bind(("127.0.0.1", holder))
        except OSError:
            return False
        if not all(_is_free(port) for port in ports):
            return False
        lock.detach()  # The port stays bound until this program ends.
    return True


def _free_of_our_blocks(count: int) -> list[int]:
    free: list[int] = []
    checked = 0
    while len(free) < count:
        if checked == len(_ports):
            _take_block()
        port = _ports.popleft()
        _ports.append(port)
        checked += 1
        if _is_free(port):
            free.append(port)
    return free


def _take_block() -> None:
    """Reserve another block of ports, whose ports are used next.

    Raises:
        OSError: all blocks are reserved by other programs.
    """
    blocks = range(_PORT_MIN, _PORT_MAX, _BLOCK_PORTS)
    for first in random.sample(blocks, len(blocks)):
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", first))
        except OSError:
            holder.close()
            continue
        holder.detach()  # The port stays bound until this program ends.
        _ports.extendleft(reversed(range(first + 1, first + _BLOCK_PORTS)))
        return
    raise OSError(f"no free ports between {_PORT_MIN} and {_PORT_MAX} on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
