"""Our codec decodes every request, and encodes every response, in the same way as an independent
codec.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.messages import MESSAGES
from odradek_protocol.kafka.request_decoding import decode_request
from odradek_protocol.kafka.response_encoding import encode_message
from tests.unit.kafka.foreign_messages import (
    NOT_IN_KIO,
    every_version,
    foreign_bytes,
    foreign_class,
    some,
)

BY_HAND = {ApiKey.PRODUCE, ApiKey.FETCH}
CASES = [
    pytest.param(key, version, id=f"{key.name}-{version}")
    for key, version in every_version()
    if key not in BY_HAND
]


@pytest.mark.parametrize(("key", "version"), CASES)
def test_request_is_read_as_it_was_written(key: ApiKey, version: int) -> None:
    for message in some(key, version, "request"):
        data = foreign_bytes(message)
        request = decode_request(key, version, memoryview(data))
        with_uuid_objects(request, MESSAGES[key][0]._struct, version)
        assert bytes(encode_message(request, version)) == data


@pytest.mark.parametrize(("key", "version"), CASES)
def test_response_is_written_as_it_was_read(key: ApiKey, version: int) -> None:
    response = MESSAGES[key][1]
    for message in some(key, version, "response"):
        data = foreign_bytes(message)
        assert bytes(encode_message(response.decode(data, version=version), version)) == data


def test_kio_knows_all_but_those_named() -> None:
    assert {(ApiKey.DELETE_GROUPS, 3), (ApiKey.API_VERSIONS, 5)} == NOT_IN_KIO
    for key, version in every_version():
        assert foreign_class(key, version, "request").__flexible__ == (
            version >= SUPPORTED[key].flexible
        )


def test_delete_groups_3_adds_a_message_to_version_2() -> None:
    request = next(some(ApiKey.DELETE_GROUPS, 2, "request"))
    data = foreign_bytes(request)
    assert list(decode_request(ApiKey.DELETE_GROUPS, 3, data).groups_names) == list(
        request.groups_names
    )
    response = MESSAGES[ApiKey.DELETE_GROUPS][1]
    result = response.DeletableGroupResult(group_id="g", error_code=3, error_message="no")
    made = response(throttle_time_ms=0, results=[result])
    assert bytes(encode_message(made, 3)) == b"\0\0\0\0\x02\x02g\0\x03\x03no\0\0"


def test_api_versions_5_adds_the_node_that_is_wanted_to_version_4() -> None:
    data = foreign_bytes(next(some(ApiKey.API_VERSIONS, 4, "request")))
    assert data.endswith(b"\0")
    request = decode_request(ApiKey.API_VERSIONS, 5, data[:-1] + b"\3c1\0\0\0\7\0")
    assert (request.cluster_id, request.node_id) == ("c1", 7)
    response = foreign_bytes(next(some(ApiKey.API_VERSIONS, 4, "response")))
    decoded = MESSAGES[ApiKey.API_VERSIONS][1].decode(response, version=5)
    assert bytes(encode_message(decoded, 5)) == response


def with_uuid_objects(obj: Any, struct: Any, version: int) -> None:
    """Replace bytes by UUID objects, which the independent codec encodes; our decoders return
    bytes.
    """
    for field in struct._fields:
        if not field.for_version_q(version):
            continue
        value = getattr(obj, field.name)
        if field._type_str == "uuid":
            setattr(obj, field.name, uuid.UUID(bytes=value) if value is not None else None)
        elif field._type_str == "[]uuid" and value:
            setattr(obj, field.name, [uuid.UUID(bytes=one) for one in value])
        elif field.is_struct_array() and value:
            for one in value:
                with_uuid_objects(one, field.array_of, version)
        elif field.is_struct() and value is not None:
            with_uuid_objects(value, field, version)
