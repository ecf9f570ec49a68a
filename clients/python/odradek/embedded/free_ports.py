"""Ports for processes that must know each other's addresses before any of them listens."""

from __future__ import annotations

import random
import socket

# Below Linux' range for outgoing connections, so that none of those takes a port while its process restarts.
_PORT_MIN = 15_000
_PORT_MAX = 32_000
_TRIES_MAX = 2_000


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
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        port = random.randrange(_PORT_MIN, _PORT_MAX)
        if port not in found and _is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"no {count} free ports between {_PORT_MIN} and {_PORT_MAX} on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
