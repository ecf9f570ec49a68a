"""Our codec decodes every request, and encodes every response, in the same way as an independent
codec.
"""

from __future__ import annotations

import struct
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
    latest = {ApiKey.DELETE_GROUPS: 3, ApiKey.API_VERSIONS: 5, ApiKey.TXN_OFFSET_COMMIT: 6}
    assert set(latest.items()) == NOT_IN_KIO
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


def test_txn_offset_commit_6_has_the_id_of_a_topic_where_version_5_has_its_name() -> None:
    topic_id = bytes(range(16))
    start = b"\3tx\2g" + struct.pack(">qhi", 5, 1, 2) + b"\2m\0\2"
    item = b"\2" + struct.pack(">iqi", 3, 4, 5) + b"\0\0" + b"\0\0"
    old = decode_request(ApiKey.TXN_OFFSET_COMMIT, 5, start + b"\7orders" + item)
    new = decode_request(ApiKey.TXN_OFFSET_COMMIT, 6, start + topic_id + item)
    assert old.topics[0].name == "orders"
    assert new.topics[0].topic_id == topic_id
    assert (new.generation_id, new.member_id, new.group_instance_id) == (2, "m", None)
    (partition,) = new.topics[0].partitions
    assert partition.partition_index == old.topics[0].partitions[0].partition_index == 3
    assert (partition.committed_offset, partition.committed_leader_epoch) == (4, 5)
    response = MESSAGES[ApiKey.TXN_OFFSET_COMMIT][1]
    result = response.TxnOffsetCommitResponseTopic
    made = response(
        topics=[
            result(
                topic_id=uuid.UUID(bytes=topic_id),
                partitions=[
                    result.TxnOffsetCommitResponsePartition(partition_index=3, error_code=100)
                ],
            )
        ]
    )
    tail = b"\2" + struct.pack(">ih", 3, 100) + b"\0\0\0"
    assert bytes(encode_message(made, 6)) == b"\0\0\0\0\2" + topic_id + tail


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
