"""The cluster's DNS as pods see it: A records of services and of pods behind headless services, over UDP.

Answers live for 5 s, as CoreDNS has it; what it does not know does not exist. Names of pods that are gone are gone
at once, and a pod that comes back has another address.
"""

from __future__ import annotations

import ipaddress
import socketserver
import struct
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

PORT = 53
TTL_S = 5
_A, _IN = 1, 1
_ANSWER, _AUTHORITATIVE, _RECURSION_WANTED, _RECURSION = 0x8000, 0x0400, 0x0100, 0x0080
_NO_SUCH_NAME = 3
_SAME_NAME = b"\xc0\x0c"  # a pointer to the question's


class ClusterDns:
    """Serves on `host` while it is open; `publish` replaces all names at once."""

    def __init__(self, host: str, *, namespace: str) -> None:
        self.host = host
        self._names: Mapping[str, Sequence[str]] = {}
        self._suffix = f"{namespace}.svc.cluster.local"
        self._server = socketserver.UDPServer((host, PORT), _handler(self))
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

    def publish(self, names: Mapping[str, Sequence[str]]) -> None:
        """Replace all names in the namespace, such as `broker-1.broker`, and their addresses."""
        self._names = {f"{name}.{self._suffix}": found for name, found in names.items()}

    def resolv_conf(self) -> str:
        """Return the resolv.conf that the kubelet gives every pod."""
        return (
            f"nameserver {self.host}\n"
            f"search {self._suffix} svc.cluster.local cluster.local\n"
            "options ndots:5\n"
        )

    def answer(self, request: bytes) -> bytes:
        """Return the response to one query for one name."""
        number, flags = struct.unpack_from(">HH", request)
        labels, position = [], 12
        while length := request[position]:
            labels.append(request[position + 1 : position + 1 + length].decode("ascii"))
            position += 1 + length
        position += 1
        kind, of = struct.unpack_from(">HH", request, position)
        addresses = self._names.get(".".join(labels).lower())
        found = (addresses or ()) if (kind, of) == (_A, _IN) else ()
        flags = _ANSWER | _AUTHORITATIVE | _RECURSION | (flags & _RECURSION_WANTED)
        if addresses is None:
            flags |= _NO_SUCH_NAME
        head = struct.pack(">HHHHHH", number, flags, 1, len(found), 0, 0)
        records = b"".join(
            _SAME_NAME
            + struct.pack(">HHIH", _A, _IN, TTL_S, 4)
            + ipaddress.IPv4Address(address).packed
            for address in found
        )
        return head + request[12 : position + 4] + records

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)


def _handler(dns: ClusterDns) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            request, socket = self.request
            socket.sendto(dns.answer(request), self.client_address)

    return Handler
