"""The encoding of messages between voters: a frame is a length and one msgpack array.

In the process a message is a dict with a `type`, because pysyncobj uses such dicts. A frame has an array: the number of
the message type, followed by the fields in the order of `_TABLE`, which defines the protocol. If a frame does not match
the table, including the types of the fields, `WireError` is raised and the connection is closed. Nothing is ever
unpickled, and msgpack extension types are not used.

New fields are only appended to a message. An earlier release ignores appended fields. If the sender has an earlier
release, such a field is missing in the dict (`_OPTIONAL`). Voters of the first release refuse messages with more
fields, so only the hello has a longer form (`peer_link`).

The entries of append_entries are encoded as two arrays, commands and terms. Their indices follow from prevLogIdx, so
the encoding cannot have gaps.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgpack

from odradek_metadata_quorum.errors import WireError

PROTOCOL_VERSION_MIN: Final = 1
PROTOCOL_VERSION_MAX: Final = 1
LENGTH: Final = struct.Struct(">I")

# A "type" and the fields of that message type, which are int, bool, bytes, str or a list of entries.
Message = dict[str, Any]

APPEND_ENTRIES: Final = "append_entries"
NEXT_NODE_IDX: Final = "next_node_idx"
REQUEST_VOTE: Final = "request_vote"
RESPONSE_VOTE: Final = "response_vote"
PRE_VOTE: Final = "pre_vote"
PRE_VOTE_REPLY: Final = "pre_vote_reply"
INSTALL_SNAPSHOT: Final = "install_snapshot"
SNAPSHOT_REPLY: Final = "snapshot_reply"
TIMEOUT_NOW: Final = "timeout_now"
JOIN_QUERY: Final = "join_query"
JOIN_REPLY: Final = "join_reply"
HELLO: Final = "hello"
PING: Final = "ping"
PONG: Final = "pong"

_U64_MAX: Final = (1 << 63) - 1

_TABLE: Final[dict[str, tuple[int, tuple[tuple[str, type], ...]]]] = {
    # A message has a field `entries`, which `encode` sends as the two fields `commands` and `terms`.
    APPEND_ENTRIES: (
        1,
        (
            ("term", int),
            ("commit_index", int),
            ("prevLogIdx", int),
            ("prevLogTerm", int),
            ("commands", list),
            ("terms", list),
        ),
    ),
    NEXT_NODE_IDX: (2, (("term", int), ("next_node_idx", int), ("reset", bool), ("success", bool))),
    REQUEST_VOTE: (3, (("term", int), ("last_log_index", int), ("last_log_term", int))),
    RESPONSE_VOTE: (4, (("term", int),)),
    PRE_VOTE: (
        5,
        (("term", int), ("round", int), ("last_log_index", int), ("last_log_term", int)),
    ),
    PRE_VOTE_REPLY: (6, (("term", int), ("round", int), ("granted", bool))),
    INSTALL_SNAPSHOT: (
        7,
        (
            ("term", int),
            ("offset", int),
            ("epoch", int),
            ("total", int),
            ("crc", int),
            ("position", int),
            ("data", bytes),
        ),
    ),
    SNAPSHOT_REPLY: (
        8,
        (("term", int), ("offset", int), ("epoch", int), ("position", int), ("installed", bool)),
    ),
    TIMEOUT_NOW: (9, (("term", int),)),
    JOIN_QUERY: (10, (("round", int),)),
    JOIN_REPLY: (11, (("round", int), ("term", int), ("last_log_index", int))),
    HELLO: (20, (("version", int), ("cluster_id", str), ("node_id", int), ("target_id", int))),
    PING: (21, (("nonce", int),)),
    PONG: (22, (("nonce", int),)),
}
# Optional fields of each message type. They follow the fields of `_TABLE` in this order, and a message may end after
# any of them.
_OPTIONAL: Final[dict[str, tuple[tuple[str, type], ...]]] = {
    HELLO: (("version_max", int), ("voters", str)),
}
_BY_NUMBER: Final = {number: (name, fields) for name, (number, fields) in _TABLE.items()}


def encode(message: Message) -> bytes:
    """Encode a message as one frame, including the length."""
    name = message["type"]
    number, fields = _TABLE[name]
    if name == APPEND_ENTRIES:
        entries = message["entries"]
        values = [
            number,
            message["term"],
            message["commit_index"],
            message["prevLogIdx"],
            message["prevLogTerm"],
            [entry[0] for entry in entries],
            [entry[2] for entry in entries],
        ]
    else:
        values = [number, *(message[field] for field, _ in fields)]
        for field, _ in _OPTIONAL.get(name, ()):
            if field not in message:
                break
            values.append(message[field])
    body: bytes = msgpack.packb(values, use_bin_type=True)
    return LENGTH.pack(len(body)) + body


def decode(body: bytes | memoryview) -> Message:
    """Decode the message in a frame without its length. Raises `WireError`."""
    try:
        values = msgpack.unpackb(body, raw=False, use_list=True, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"the frame is not valid msgpack: {error!r}") from None
    if type(values) is not list or not values or type(values[0]) is not int:
        raise WireError("the message is not an array that starts with the number of its type")
    message_type = _BY_NUMBER.get(values[0])
    if message_type is None:
        raise WireError(f"unknown message type {values[0]}")
    name, fields = message_type
    if len(values) <= len(fields):
        raise WireError(f"{name} has {len(values) - 1} fields instead of {len(fields)}")
    message: Message = {"type": name}
    # Values after the last known field were added by a later release.
    for (field, kind), value in zip((*fields, *_OPTIONAL.get(name, ())), values[1:], strict=False):
        if type(value) is not kind or (type(value) is int and not 0 <= value <= _U64_MAX):
            raise WireError(f"{name}.{field} is not a valid {kind.__name__}")
        message[field] = value
    if name == APPEND_ENTRIES:
        _join_entries(message)
    return message


def _join_entries(message: Message) -> None:
    """Replace commands and terms by `entries`, a list of (command, index, term) as the engine needs it. Raises
    `WireError`.
    """
    commands, terms = message.pop("commands"), message.pop("terms")
    if len(commands) != len(terms):
        raise WireError("append_entries has different numbers of commands and terms")
    if not all(type(command) is bytes and command for command in commands):
        raise WireError("append_entries has a command that is empty or not bytes")
    last = message["prevLogTerm"]
    for term in terms:
        if type(term) is not int or not last <= term <= message["term"]:
            raise WireError("append_entries has terms out of order")
        last = term
    first = message["prevLogIdx"] + 1
    message["entries"] = list(
        zip(commands, range(first, first + len(commands)), terms, strict=True)
    )
