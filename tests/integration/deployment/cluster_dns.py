"""The cluster's DNS server as pods use it: A records of services, and of pods behind headless
services, over UDP.

It caches as CoreDNS does in most clouds (`cache 30`): it repeats an address, and also the response
that a name does not exist, for 30 s after the first query. A pod that returns has another address.
Until the cached response expires, its name below the headless service has the old address or none.
The name of a service with a cluster IP always has the same address, behind which kube-proxy follows
the pods at once; here the name follows the pods, and is not cached.
"""

from __future__ import annotations

import ipaddress
import socketserver
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

PORT = 53
CACHE_S = 30
_A, _IN = 1, 1
_ANSWER, _AUTHORITATIVE, _RECURSION_WANTED, _RECURSION = 0x8000, 0x0400, 0x0100, 0x0080
_NO_SUCH_NAME = 3
_SAME_NAME = b"\xc0\x0c"  # a pointer to the question's


class CachedNames:
    """The names of a namespace as a resolver with a cache tells them."""

    def __init__(self, namespace: str) -> None:
        self._names: Mapping[str, Sequence[str]] = {}
        self._followed: frozenset[str] = frozenset()
        self._cache: dict[str, tuple[float, Sequence[str] | None]] = {}  # name: (end, addresses)
        self.suffix = f"{namespace}.svc.cluster.local"

    def publish(
        self, headless: Mapping[str, Sequence[str]], services: Mapping[str, Sequence[str]]
    ) -> None:
        """Replace all names in the namespace: those of headless services and their pods, such as
        `broker-1.broker`, and those of services with a cluster IP.
        """
        names = {**headless, **services}
        self._followed = frozenset(f"{name}.{self.suffix}" for name in services)
        self._names = {f"{name}.{self.suffix}": addresses for name, addresses in names.items()}

    def answer(self, request: bytes, now_s: float) -> bytes:
        """Return the response to one query for one name."""
        number, flags = struct.unpack_from(">HH", request)
        labels, position = [], 12
        while length := request[position]:
            labels.append(request[position + 1 : position + 1 + length].decode("ascii"))
            position += 1 + length
        position += 1
        kind, of = struct.unpack_from(">HH", request, position)
        addresses, left_s = self._look_up(".".join(labels).lower(), now_s)
        found = (addresses or ()) if (kind, of) == (_A, _IN) else ()
        flags = _ANSWER | _AUTHORITATIVE | _RECURSION | (flags & _RECURSION_WANTED)
        if addresses is None:
            flags |= _NO_SUCH_NAME
        head = struct.pack(">HHHHHH", number, flags, 1, len(found), 0, 0)
        records = b"".join(
            _SAME_NAME
            + struct.pack(">HHIH", _A, _IN, left_s, 4)
            + ipaddress.IPv4Address(address).packed
            for address in found
        )
        return head + request[12 : position + 4] + records

    def _look_up(self, name: str, now_s: float) -> tuple[Sequence[str] | None, int]:
        """Return the addresses of a name, or None if it does not exist, and for how many more
        seconds they are cached.
        """
        if name in self._followed:
            return self._names[name], 0
        end_s, addresses = self._cache.get(name, (now_s, None))
        if now_s >= end_s:
            end_s, addresses = now_s + CACHE_S, self._names.get(name)
            self._cache[name] = end_s, addresses
        return addresses, int(end_s - now_s)


class ClusterDns:
    """A DNS server on `host` while it is open; `publish` replaces all names at once."""

    def __init__(self, host: str, *, namespace: str) -> None:
        self.host = host
        self._names = CachedNames(namespace)
        self.publish = self._names.publish
        self._server = socketserver.UDPServer((host, PORT), _handler(self._names))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def resolv_conf(self) -> str:
        """Return the resolv.conf that the kubelet gives every pod."""
        return (
            f"nameserver {self.host}\n"
            f"search {self._names.suffix} svc.cluster.local cluster.local\n"
            "options ndots:5\n"
        )

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)


def _handler(names: CachedNames) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            request, socket = self.request
            socket.sendto(names.answer(request, time.monotonic()), self.client_address)

    return Handler
