"""Conversations with malformed frames, and with ApiVersions, which responds even to versions that it does not know."""

from __future__ import annotations

import struct
from typing import Any

from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from tests.e2e.kafka.same_answers.conversation import Conversation
from tests.e2e.kafka.same_answers.wire import request_body, request_frame, response_of

_METADATA = {"topics": [{"name": "nowhere", "topic_id": bytes(16)}]}
_FEATURES = ("group.version", "transaction.version")
_SERVED = frozenset(map(int, SUPPORTED))


def unknown_requests(talk: Conversation) -> None:
    """Send API keys and versions that no broker has."""
    body = request_body(ApiKey.METADATA, 12, _METADATA)
    read = _outcome
    for key in (-1, 999, 4, 70):  # 4 and 70 are requests between brokers
        talk.exchange(f"key {key}", request_frame(key, 0, body, is_flexible=False), read)
    for key, served in SUPPORTED.items():
        if key is ApiKey.API_VERSIONS:
            continue
        frame = request_frame(key, served.highest + 1, b"", is_flexible=True)
        talk.exchange(f"{key.name} above", frame, read)
        frame = request_frame(key, served.lowest - 1, b"", is_flexible=False)
        talk.exchange(f"{key.name} below", frame, read)


def api_versions(talk: Conversation) -> None:
    """Send ApiVersions in versions that exist, and in versions that do not."""
    key = ApiKey.API_VERSIONS
    named = {"client_software_name": "test", "client_software_version": "1.0"}
    for version in (0, 1, 2, 3, 4, 5):
        _record_served(talk, f"version {version}", talk.prepare(key, version, **named))
    for bad in ("", " ", "a b", "-a", "a-", "é", "x" * 300, "a.b-c"):
        for field in named:
            _record_served(
                talk, f"{field} {bad[:9]!r}", talk.prepare(key, 3, **named | {field: bad})
            )
    for cluster, node in (
        ("another", -1),
        (None, 77),
        ("another", 77),
        (None, -2),
        ("", -1),
        (None, 1),
    ):
        fields = {**named, "cluster_id": cluster, "node_id": node}
        _record_served(talk, f"cluster {cluster!r}, node {node}", talk.prepare(key, 5, **fields))
    for version in (6, 99, -1):
        frame = request_frame(int(key), version, b"", is_flexible=True)
        talk.exchange(
            f"version {version}", frame, lambda content: _served(response_of(key, 0, content))
        )


def _record_served(talk: Conversation, label: str, response: Any) -> None:
    talk.record(label, _served(response) if isinstance(response, dict) else response)


def _served(response: Any) -> Any:
    """Leave out the APIs that Odradek does not serve, and the features that it does not have."""
    for name in ("supported_features", "finalized_features"):
        if response.get(name):
            response[name] = [one for one in response[name] if one["name"] in _FEATURES]
    keys = [one for one in response["api_keys"] if one["api_key"] in _SERVED]
    return response | {"api_keys": keys}


def damaged_bodies(talk: Conversation) -> None:
    """Send every request without its last bytes, and with additional bytes at its end."""
    for key, served in SUPPORTED.items():
        if key in (ApiKey.PRODUCE, ApiKey.SASL_AUTHENTICATE, ApiKey.SASL_HANDSHAKE):
            continue
        version = talk.version(key)
        body = request_body(key, version, {})
        flexible = version >= served.flexible
        if len(body) > 1:
            cut = request_frame(key, version, body[:-1], is_flexible=flexible)
            talk.exchange(f"{key.name} {version} cut", cut, _outcome)


def trailing_bytes(talk: Conversation) -> None:
    """Send requests with bytes after the body that belong to no field."""
    named = {"client_software_name": "test", "client_software_version": "1.0"}
    for key, fields in (
        (ApiKey.METADATA, _METADATA),
        (ApiKey.FIND_COORDINATOR, {"key": "g", "coordinator_keys": ["g"]}),
        (ApiKey.API_VERSIONS, named),
    ):
        version = talk.version(key)
        body = request_body(key, version, fields) + b"\0\1\2"
        flexible = version >= SUPPORTED[key].flexible
        frame = request_frame(key, version, body, is_flexible=flexible)
        talk.exchange(f"{key.name} {version} and more", frame, _outcome)


def odd_frames(talk: Conversation) -> None:
    """Send frames with odd sizes, headers and tags."""
    for size in (-1, 0, 1, 7, (1 << 31) - 1):
        talk.exchange(
            f"size {size}", struct.pack(">i", size) + bytes(max(0, min(size, 9))), _outcome
        )
    body = request_body(ApiKey.METADATA, 12, _METADATA)
    for word, client, tags in (
        ("null client id", b"\xff\xff", b"\0"),
        ("empty client id", b"\0\0", b"\0"),
        ("client id too short", b"\0\xff", b""),
        ("unknown tag", b"\0\1c", b"\1\x63\3abc"),
        ("tag cut", b"\0\1c", b"\1\x63\x7fabc"),
    ):
        content = struct.pack(">hhi", 3, 12, 7) + client + tags + body
        talk.exchange(word, struct.pack(">i", len(content)) + content, _outcome)
    tagged = body[:-1] + b"\1\x63\3abc"
    talk.exchange(
        "unknown tag in the body", request_frame(3, 12, tagged, is_flexible=True), _outcome
    )


def _outcome(content: bytes) -> Any:
    return "a response"


TALKS = (unknown_requests, api_versions, damaged_bodies, trailing_bytes, odd_frames)
