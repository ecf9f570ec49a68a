"""Clients that speak another protocol than the listener: who they are, and a farewell that they can show.

A cluster has several ports, and the wrong one is the commonest mistake of a first day. The first four bytes
tell protocols apart. Those of a Kafka connection are a frame's length; those of HTTP/2 (gRPC), HTTP/1 and
TLS would be lengths beyond any limit, so recognizing them takes nothing from Kafka's clients.
"""

from __future__ import annotations

import struct
from typing import Final

GRPC: Final = "gRPC"
HTTP: Final = "HTTP"
TLS: Final = "TLS"
KAFKA: Final = "Kafka"

_HTTP_METHODS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN")
_HTTP2_SETTINGS: Final = 4
_HTTP2_GOAWAY: Final = 7
_HTTP_1_1_REQUIRED: Final = 0xD
_DEBUG_BYTES_MAX: Final = 1024


def recognize(first: bytes) -> str | None:
    """The protocol that begins with these four bytes, or None for anything else."""
    if first == b"PRI ":  # the connection preface of HTTP/2, RFC 9113 section 3.4
        return GRPC
    if first in _HTTP_METHODS:
        return HTTP
    if first[:2] == b"\x16\x03":  # a TLS handshake record of any version
        return TLS
    if first[:1] == b"\0":  # the length of a frame below 16 MiB
        return KAFKA
    return None


def farewell(protocol: str, advice: str) -> bytes:
    """What to send to a client of that protocol before closing, so that its error shows `advice`.

    gRPC shows the debug data of a GOAWAY; TLS and Kafka have no place for words.
    """
    if protocol == GRPC:
        words = advice.encode()[:_DEBUG_BYTES_MAX]
        goaway = struct.pack(">II", 0, _HTTP_1_1_REQUIRED) + words
        return _http2_frame(_HTTP2_SETTINGS, b"") + _http2_frame(_HTTP2_GOAWAY, goaway)
    if protocol == HTTP:
        body = f"{advice}\n".encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body
    return b""


def _http2_frame(kind: int, payload: bytes) -> bytes:
    """A frame of stream 0 without flags, RFC 9113 section 4.1."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, 0, 0) + payload
