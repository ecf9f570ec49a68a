"""Long messages are decoded and encoded in steps, with exactly the same result as in one piece."""

from __future__ import annotations

from typing import Any

import pytest

from odradek_protocol.identity import TOPIC_NAME_BYTES_MAX
from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.request_decoding import (
    ITEMS_MAX,
    STRING_BYTES_MAX,
    decode_request,
    decode_request_in_steps,
)
from odradek_protocol.kafka.response_encoding import encode_message, encode_steps, item_count
from odradek_protocol.primitives import Malformed
from tests.unit.kafka.largest_requests import LargeRequest, item_of, largest_requests
from tests.unit.kafka.requests_to_everything import message_of

DECODED_BY_HAND = (ApiKey.PRODUCE, ApiKey.FETCH)
REQUESTS = [one for one in largest_requests(count=200) if one.key not in DECODED_BY_HAND]
RESPONSES = [
    (key, version)
    for key, versions in SUPPORTED.items()
    for version in range(versions.lowest, versions.highest + 1)
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: one.name)
def test_a_request_decoded_in_steps_is_the_same(request_: LargeRequest) -> None:
    key, version, body = request_.key, request_.version, request_.body
    assert in_steps(key, version, body).to_dict() == (decode_request(key, version, body).to_dict())
    for end in range(0, len(body), max(1, len(body) // 50)):
        with pytest.raises(Malformed):
            in_steps(key, version, body[:end] if end else b"\xff" * 9)


@pytest.mark.parametrize(("key", "version"), RESPONSES, ids=str)
def test_a_response_encoded_in_steps_is_the_same(key: ApiKey, version: int) -> None:
    response = messages.MESSAGES[key][1]
    message = response(version=version, **filled(response._struct, 3))
    parts: list[bytearray] = []
    steps = sum(1 for _ in encode_steps(message, version, parts))
    assert b"".join(parts) == bytes(encode_message(message, version))
    assert steps >= item_count(message, version, counted_max=1)


def test_a_response_of_many_items_is_encoded_in_as_many_steps() -> None:
    topic = messages.MetadataResponse.MetadataResponseTopic
    partition = topic.MetadataResponsePartition
    topics = [
        topic(
            name="wide",
            topic_id=messages.uuid_of(b"x" * 16),
            partitions=[
                partition(
                    partition_index=one, replica_nodes=[1], isr_nodes=[1], offline_replicas=[]
                )
                for one in range(5_000)
            ],
        )
    ]
    message = messages.MetadataResponse(brokers=[], topics=topics, controller_id=1)
    assert item_count(message, 12, counted_max=256) >= 256
    parts: list[bytearray] = []
    assert sum(1 for _ in encode_steps(message, 12, parts)) > 5_000
    assert b"".join(parts) == bytes(encode_message(message, 12))


def test_more_items_than_any_tool_sends_are_refused() -> None:
    names = [f"group-{number}" for number in range(ITEMS_MAX + 1)]
    for count, is_taken in ((ITEMS_MAX, True), (ITEMS_MAX + 1, False)):
        message = messages.DeleteGroupsRequest(groups_names=names[:count])
        body = bytes(encode_message(message, 1))
        if is_taken:
            assert len(decode_request(ApiKey.DELETE_GROUPS, 1, body).groups_names) == count
        else:
            with pytest.raises(Malformed, match="items"):
                decode_request(ApiKey.DELETE_GROUPS, 1, body)


@pytest.mark.parametrize(
    "key",
    [ApiKey.LIST_OFFSETS, ApiKey.OFFSET_COMMIT, ApiKey.DELETE_RECORDS, ApiKey.OFFSET_DELETE],
)
def test_a_topic_has_at_most_the_bytes_that_its_folder_may_have(key: ApiKey) -> None:
    version = min(SUPPORTED[key].highest, 9)  # later ones of OffsetCommit name topics by id
    for length, is_taken in ((TOPIC_NAME_BYTES_MAX, True), (TOPIC_NAME_BYTES_MAX + 1, False)):
        message = message_of(key, version)
        message.topics[0].name = "x" * length
        assert taken(key, version, message) is is_taken


def test_a_name_that_is_too_long_is_answered_where_a_person_may_have_typed_it() -> None:
    for key in (ApiKey.METADATA, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS):
        version = SUPPORTED[key].highest
        for length, is_taken in ((STRING_BYTES_MAX, True), (STRING_BYTES_MAX + 1, False)):
            message = message_of(key, version)
            message.topics[0].name = "x" * length
            assert taken(key, version, message) is is_taken


@pytest.mark.parametrize(
    ("key", "version"),
    [(ApiKey.ALTER_CLIENT_QUOTAS, 1), (ApiKey.JOIN_GROUP, 9), (ApiKey.INIT_PRODUCER_ID, 5)],
)
def test_no_string_is_longer_than_the_older_versions_allow(key: ApiKey, version: int) -> None:
    for length, is_taken in ((STRING_BYTES_MAX, True), (STRING_BYTES_MAX + 1, False)):
        message = message_of(key, version)
        if key is ApiKey.ALTER_CLIENT_QUOTAS:
            message.entries[0].entity[0].entity_name = "x" * length
        elif key is ApiKey.JOIN_GROUP:
            message.group_id = "x" * length
        else:
            message.transactional_id = "x" * length
        assert taken(key, version, message) is is_taken


def taken(key: ApiKey, version: int, message: Any) -> bool:
    """Return whether both decoders accept a message; assert that they agree."""
    body = bytes(encode_message(message, version))
    outcomes = []
    for decode in (decode_request, in_steps):
        try:
            decode(key, version, body)
        except Malformed:
            outcomes.append(False)
        else:
            outcomes.append(True)
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def in_steps(key: ApiKey, version: int, body: bytes) -> Any:
    """Return the message that `decode_request_in_steps` decodes."""
    steps = decode_request_in_steps(key, version, body)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def filled(field: Any, count: int) -> dict[str, Any]:
    """Fill every field of a message, with this many items in each array of structs."""
    values: dict[str, Any] = {}
    for one in field.fields.values():
        if one.is_struct_array():
            values[one.name] = [item_of(one.array_of, str(number)) for number in range(count)]
        elif one.is_struct():
            values[one.name] = item_of(one, "0")
        elif one.is_array():
            values[one.name] = []
        elif one._type_str == "uuid":
            values[one.name] = messages.uuid_of(b"x" * 16)
    return values
