"""Ports for processes that must know each other's addresses before any of them listens.

Between the choice of a port and the moment its process listens, another program may choose the
same one. Programs that start clusters at the same time therefore take their ports from blocks: a
block belongs to the program that holds its first port, which nothing else uses.
"""

from __future__ import annotations

import random
import socket
import threading
from collections import deque
from typing import Final

# Below Linux' range for outgoing connections, so that none of those takes a port while its process restarts.
_PORT_MIN: Final = 15_000
_PORT_MAX: Final = 32_000
_BLOCK_PORTS: Final = 100

_lock = threading.Lock()
_ports: deque[int] = deque()  # of our blocks, without the first; given longest ago comes first


def free_ports(count: int, *, base_port: int = 0) -> list[int]:
    """`count` ports on loopback that nothing listens on now; from `base_port` on when it is not 0.

    Raises:
        OSError: one of the ports after `base_port` is taken, or no free ones were found.
    """
    if base_port:
        ports = [base_port + i for i in range(count)]
        for port in ports:
            if not _is_free(port):
                raise OSError(
                    f"port {port} on 127.0.0.1 is in use: stop what listens there, "
                    f"or choose another --base-port (0: free ports)"
                )
        return ports
    with _lock:
        return _free_of_our_blocks(count)


def hold_if_all_free(ports: list[int], holder: int) -> bool:
    """Whether all of `ports` are free; then they are this program's, until it ends.

    Nothing listens on the port `holder`: who has bound it owns the others, so that two programs that
    start at once do not both find them free.
    """
    with socket.socket() as lock:
        try:
            lock.bind(("127.0.0.1", holder))
        except OSError:
            return False
        if not all(_is_free(port) for port in ports):
            return False
        lock.detach()  # open until this program ends
    return True


def _free_of_our_blocks(count: int) -> list[int]:
    found: list[int] = []
    seen = 0
    while len(found) < count:
        if seen == len(_ports):
            _take_block()
        port = _ports.popleft()
        _ports.append(port)
        seen += 1
        if _is_free(port):
            found.append(port)
    return found


def _take_block() -> None:
    """Hold one more block; its ports come first.

    Raises:
        OSError: all blocks are taken.
    """
    blocks = range(_PORT_MIN, _PORT_MAX, _BLOCK_PORTS)
    for first in random.sample(blocks, len(blocks)):
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", first))
        except OSError:
            holder.close()
            continue
        holder.detach()  # open until this program ends
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
