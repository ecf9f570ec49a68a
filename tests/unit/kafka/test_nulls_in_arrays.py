"""In requests of any version, an array may be null where its schema allows it; its elements may not
be null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.messages import MESSAGES
from odradek_protocol.kafka.request_decoding import decode_request
from odradek_protocol.kafka.response_encoding import encode_message
from odradek_protocol.primitives import Malformed
from tests.unit.kafka.foreign_messages import every_version

BY_HAND = {ApiKey.PRODUCE, ApiKey.FETCH}


def arrays_of_sized(
    fields: Iterable[Any], version: int, above: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield the path of fields that leads to each array of strings or bytes."""
    for field in fields:
        if field.is_struct_array():
            inner = field.array_of.untagged_fields(version)
            yield from arrays_of_sized(inner, version, (*above, field))
        elif field.is_struct():
            yield from arrays_of_sized(field.untagged_fields(version), version, (*above, field))
        elif field.is_array() and field.array_of._type_str in ("string", "bytes"):
            yield (*above, field)


CASES = [
    pytest.param(key, version, path, id=f"{key.name}-{version}-{path[-1].name}")
    for key, version in every_version()
    if key not in BY_HAND
    for path in arrays_of_sized(MESSAGES[key][0]._struct.untagged_fields(version), version)
]


def request_with(key: ApiKey, version: int, path: tuple[Any, ...], element: Any) -> Any:
    """Return a request whose array at the end of `path` has only this element."""
    request = message = MESSAGES[key][0](version=version)
    for field in path[:-1]:
        inner = (field.array_of if field.is_struct_array() else field).data_class(version=version)
        setattr(message, field.name, [inner] if field.is_struct_array() else inner)
        message = inner
    setattr(message, path[-1].name, [element])
    return request


@pytest.mark.parametrize(("key", "version", "path"), CASES)
def test_a_null_element_is_refused(key: ApiKey, version: int, path: tuple[Any, ...]) -> None:
    empty = b"" if path[-1].array_of._type_str == "bytes" else ""
    fine = bytes(encode_message(request_with(key, version, path, empty), version))
    decode_request(key, version, memoryview(fine))
    # The length of the empty element is 0, and 1 where lengths are written plus one: null is one less.
    if path[-1].array_of.nullable_for_version_q(version):
        null = bytes(encode_message(request_with(key, version, path, None), version))
        with pytest.raises(Malformed):
            decode_request(key, version, memoryview(null))


def test_the_requests_that_clients_can_send_so_are_among_them() -> None:
    nullable = {
        (case.values[0], case.values[2][-1].name)
        for case in CASES
        if case.values[2][-1].array_of.nullable_for_version_q(case.values[1])
    }
    assert (ApiKey.CONSUMER_GROUP_HEARTBEAT, "subscribed_topic_names") in nullable
