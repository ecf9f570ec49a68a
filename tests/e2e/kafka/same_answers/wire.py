"""Sends raw requests over a TCP connection. Requests are made from plain dictionaries, and responses are decoded to
dictionaries.
"""

from __future__ import annotations

import socket
import struct
import uuid
from typing import Any, Final, NamedTuple

from kafka.net.sasl.scram import ScramClient

from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.messages import MESSAGES
from odradek_protocol.kafka.response_encoding import encode_message

Fields = dict[str, Any]
Address = tuple[str, int]

CLOSED: Final = "the connection is closed"
SILENT: Final = "no response"
RESPONSE_S_MAX: Final = 12.0
_NAME: Final = b"differ"


def request_body(key: ApiKey, version: int, fields: Fields) -> bytes:
    """Encode a request. Fields that this version does not have are left out. A field that no version has is an error in
    the conversation.
    """
    request = MESSAGES[key][0]
    _check_names(request._struct, fields, key.name, version)
    return bytes(encode_message(_built(request, version, fields, {"version": version}), version))


def _check_names(schema: Any, fields: Fields, path: str, version: int) -> None:
    for name, value in fields.items():
        assert name in schema.fields, f"{path} has no field {name}, but {[*schema.fields]}"
        field = schema.fields[name]
        if not field.for_version_q(version):
            continue
        inner = field.array_of if field.is_struct_array() else field
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                _check_names(inner, item, f"{path}.{name}", version)


def _built(made: Any, version: int, fields: Fields, more: Fields | None = None) -> Any:
    """Make a message or a nested struct of it."""
    schema = made._struct
    values: Fields = {}
    for name, field in schema.fields.items():
        given = name in fields
        if not field.for_version_q(version):
            continue
        if field.is_struct_array():
            inner = field.data_class
            items = fields.get(name, [])
            values[name] = None if items is None else [_built(inner, version, i) for i in items]
        elif field.is_struct():
            if fields.get(name) is not None:
                values[name] = _built(field.data_class, version, fields[name])
            elif given:
                values[name] = None
        elif given:
            is_id = field.type_str == "uuid" and isinstance(fields[name], bytes)
            values[name] = uuid.UUID(bytes=fields[name]) if is_id else fields[name]
        elif field.is_array():
            values[name] = []
        elif field.type_str == "string" and not field._nullable_versions:
            values[name] = ""
        elif field.type_str == "uuid":
            values[name] = uuid.UUID(int=0)
    return made(**values, **more or {})


def request_frame(key: int, version: int, body: bytes, *, is_flexible: bool) -> bytes:
    """Return a request with its size and its header."""
    header = struct.pack(">hhih", key, version, 7, len(_NAME)) + _NAME
    content = header + (b"\0" if is_flexible else b"") + body
    return struct.pack(">i", len(content)) + content


class Login(NamedTuple):
    """A user that logs in by SCRAM-SHA-256."""

    user: str
    password: str


class Connection:
    """A connection to a broker. After the broker has closed it, the next request opens a new one."""

    def __init__(self, address: Address, login: Login | None = None) -> None:
        self._address = address
        self._login = login
        self._socket: socket.socket | None = None

    def ask(self, key: ApiKey, version: int, fields: Fields) -> Any:
        """Send a request; return the response as plain values, or CLOSED or SILENT."""
        body = request_body(key, version, fields)
        flexible = version >= SUPPORTED[key].flexible
        content = self.exchange(request_frame(key, version, body, is_flexible=flexible))
        return content if isinstance(content, str) else response_of(key, version, content)

    def exchange(self, frame: bytes, *, wait_s: float = RESPONSE_S_MAX) -> bytes | str:
        """Send bytes; return the response frame, or CLOSED or SILENT."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address)
            if self._login is not None:
                self._log_in(self._login)
        self._socket.settimeout(wait_s)
        try:
            self._socket.sendall(frame)
            (size,) = struct.unpack(">i", self._exactly(4))
            return self._exactly(size)
        except TimeoutError:
            self.close()
            return SILENT
        except OSError:
            self.close()
            return CLOSED

    def _log_in(self, login: Login) -> None:
        client = ScramClient(login.user, login.password, "SCRAM-SHA-256")
        self.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})
        first = {"auth_bytes": client.first_message()}
        challenge = self.ask(ApiKey.SASL_AUTHENTICATE, 0, first)
        client.process_server_first_message(challenge["auth_bytes"])
        final = {"auth_bytes": client.final_message()}
        response = self.ask(ApiKey.SASL_AUTHENTICATE, 0, final)
        assert response["error_code"] == 0, response

    def _exactly(self, count: int) -> bytes:
        assert self._socket is not None
        content = b""
        while len(content) < count:
            more = self._socket.recv(count - len(content))
            if not more:
                raise ConnectionResetError
            content += more
        return content

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def response_of(key: ApiKey, version: int, content: bytes) -> Fields:
    """Decode a response into nested dictionaries."""
    has_tags = version >= SUPPORTED[key].flexible and key is not ApiKey.API_VERSIONS
    message = MESSAGES[key][1].decode(content[5 if has_tags else 4 :], version=version)
    return _plain(message, MESSAGES[key][1]._struct, version)


def _plain(item: Any, schema: Any, version: int) -> Fields:
    return {
        name: _plain_value(getattr(item, name, None), field, version)
        for name, field in schema.fields.items()
        if field.for_version_q(version)
    }


def _plain_value(value: Any, field: Any, version: int) -> Any:
    if value is None:
        return None
    if field.is_struct_array():
        return [_plain(each, field.array_of, version) for each in value]
    if field.is_struct():
        return _plain(value, field, version)
    return [*value] if field.is_array() else value
