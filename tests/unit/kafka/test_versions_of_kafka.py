"""The broker serves the same API versions as Apache Kafka 4.4, with the same meaning."""

from __future__ import annotations

import json
import logging
import struct
from pathlib import Path
from typing import Any

import pytest

from odradek_protocol.kafka import fetch, messages
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.response_encoding import encode_message
from odradek_protocol.primitives import write_uvarint
from tests.unit.kafka.wire_client import listening

KAFKA = json.loads(Path(__file__).with_name("apache_kafka_4_4.json").read_text())["apis"]
NOT_SERVED = {
    *range(24, 29),  # transactions, while not every broker supports them (see below)
    34,  # a broker has one log directory
    *range(38, 42),  # delegation tokens
    *(61, 65, 66),  # the same
    *range(76, 80),  # share groups
    *(80, 81, 94),  # controllers come and go by their settings
    *range(83, 88),  # share groups
    *(88, 89, 93),  # Streams groups
    *range(90, 93),  # share groups
}


async def test_every_api_that_is_served_is_served_in_kafkas_versions() -> None:
    async with listening() as server:
        client = await server.connect()
        client.send(ApiKey.API_VERSIONS, 0)
        response = messages.ApiVersionsResponse.decode((await client.receive())[1], version=0)
    ours = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    theirs = {api["key"]: (api["lowest"], api["highest"]) for api in KAFKA}
    assert {key: versions for key, versions in theirs.items() if key not in NOT_SERVED} == ours


def test_the_requests_of_transactions_are_served_in_kafkas_versions() -> None:
    theirs = {api["key"]: (api["lowest"], api["highest"]) for api in KAFKA}
    for key in (*range(22, 29), 61, 65, 66):
        ours = SUPPORTED[ApiKey(key)]
        assert (ours.lowest, ours.highest) == theirs[key], ApiKey(key)


def test_the_names_are_kafkas() -> None:
    names = {api["key"]: api["name"] for api in KAFKA}
    assert {key: names[key].upper() for key in SUPPORTED} == {
        key: key.name.replace("_", "") for key in SUPPORTED
    }


# --- versions that differ in what they mean -------------------------------------------------------


async def ask(key: ApiKey, version: int, message: Any) -> Any:
    async with listening() as server:
        client = await server.connect()
        client.send(key, version, bytes(encode_message(message, version)))
        _, body = await client.receive()
        if version >= SUPPORTED[key].flexible and key is not ApiKey.API_VERSIONS:
            body = body[1:]
        return messages.MESSAGES[key][1].decode(body, version=version)


@pytest.mark.parametrize(
    ("version", "names", "expected"),
    [
        (0, [], {"orders", "payments"}),
        (0, ["orders"], {"orders"}),
        (1, [], set()),
        (1, None, {"orders", "payments"}),
    ],
)
async def test_an_empty_list_of_topics_means_all_of_them_in_metadata_0_alone(
    version: int, names: list[str] | None, expected: set[str]
) -> None:
    topic = messages.MetadataRequest.MetadataRequestTopic
    topics = None if names is None else [topic(name=name) for name in names]
    response = await ask(ApiKey.METADATA, version, messages.MetadataRequest(topics=topics))
    assert {one.name for one in response.topics} == expected
    assert [(one.host, one.port) for one in response.brokers] == [("broker-1", 9092)]


async def test_metadata_0_has_no_null_list_of_topics() -> None:
    async with listening() as server:
        client = await server.connect()
        client.send(ApiKey.METADATA, 0, struct.pack(">i", -1))
        assert await client.is_closed()


@pytest.mark.parametrize(
    ("timestamp", "version", "code", "offset"),
    [
        (-1, 1, ErrorCode.NONE, 42),
        (-4, 8, ErrorCode.NONE, 42),
        (-4, 7, ErrorCode.UNSUPPORTED_VERSION, -1),
        (-5, 9, ErrorCode.NONE, -1),
        (-5, 8, ErrorCode.UNSUPPORTED_VERSION, -1),
        (-6, 11, ErrorCode.NONE, -1),
        (-6, 10, ErrorCode.UNSUPPORTED_VERSION, -1),
        (-7, 11, ErrorCode.UNSUPPORTED_VERSION, -1),
    ],
)
async def test_special_timestamps_are_answered_from_their_version_on(
    timestamp: int, version: int, code: ErrorCode, offset: int
) -> None:
    """Timestamps -5 and -6 ask for offsets in remote storage, which no topic has."""
    topic = messages.ListOffsetsRequest.ListOffsetsTopic
    partition = topic.ListOffsetsPartition(
        partition_index=0, timestamp=timestamp, current_leader_epoch=-1
    )
    request = messages.ListOffsetsRequest(
        replica_id=-1, topics=[topic(name="orders", partitions=[partition])]
    )
    response = await ask(ApiKey.LIST_OFFSETS, version, request)
    (answered,) = response.topics[0].partitions
    assert (answered.error_code, answered.offset, answered.timestamp) == (code, offset, -1)


@pytest.mark.parametrize("version", [17, 18])
def test_what_only_followers_send_in_a_fetch_is_skipped(version: int) -> None:
    """Followers send the directory id (tag 0 of a partition) from version 17 on, and the high
    watermark (tag 1) from 18 on.
    """
    tags = {0: bytes(range(16)), 1: struct.pack(">q", 7)}
    body = bytearray(struct.pack(">iiibii", 500, 1, 1 << 20, 0, 0, -1))
    write_uvarint(body, 2)
    body += b"o" * 16
    write_uvarint(body, 2)
    body += struct.pack(">iiqiqi", 3, 5, 1_000, 4, -1, 1 << 16)
    write_uvarint(body, version - 16)
    for tag in range(version - 16):
        write_uvarint(body, tag)
        write_uvarint(body, len(tags[tag]))
        body += tags[tag]
    body += b"\0"  # the topic's tags
    body += b"\1\1\0"  # nothing forgotten, no rack, no tags
    request = fetch.decode_fetch(version, bytes(body))
    assert request.topics[0].partitions == [
        fetch.FetchPartition(3, 5, 1_000, 4, -1, 1 << 16),
    ]
    assert request.replica_id == -1


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "code"),
    [
        (None, -1, ErrorCode.NONE),
        ("cluster", 1, ErrorCode.NONE),
        ("cluster", 2, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("another", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("cluster", -1, ErrorCode.INVALID_REQUEST),
        (None, 1, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_client_that_reached_another_node_is_told_to_start_again(
    cluster_id: str | None, node_id: int, code: ErrorCode
) -> None:
    request = messages.ApiVersionsRequest(
        client_software_name="x",
        client_software_version="1",
        cluster_id=cluster_id,
        node_id=node_id,
    )
    response = await ask(ApiKey.API_VERSIONS, 5, request)
    assert response.error_code == code
    assert bool(response.api_keys) == (code is ErrorCode.NONE)


# --- versions that are not there ------------------------------------------------------------------


async def test_an_unknown_version_of_api_versions_gets_version_0_with_its_range() -> None:
    async with listening() as server:
        client = await server.connect()
        client.send_frame(struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 5, -1) + b"whatever")
        # as an Apache Kafka 4.4.0 broker answers, byte for byte
        assert await client.receive() == (5, bytes.fromhex("0023 00000001 0012 0000 0005"))


@pytest.mark.parametrize(
    ("key", "version", "reason"),
    [
        (3, 99, "request METADATA is served in versions 0 to 13, not in version 99"),
        (0, 2, "request PRODUCE is served in versions 3 to 13, not in version 2"),
        (28, 2, "request TXN_OFFSET_COMMIT is not served"),
        (77, 1, "request 77 is not served"),
    ],
)
async def test_the_log_says_which_client_asked_for_what_is_not_served(
    key: int, version: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = messages.ApiVersionsRequest(
        client_software_name="old-client", client_software_version="0.1"
    )
    async with listening() as server:
        client = await server.connect()
        client.send(ApiKey.API_VERSIONS, 3, bytes(encode_message(request, 3)))
        await client.receive()
        with caplog.at_level(logging.INFO):
            client.send_frame(struct.pack(">hhih", key, version, 1, 4) + b"shop")
            assert await client.is_closed()
    (line,) = [one for one in caplog.records if one.getMessage() == "Closed connection"]
    fields = line.odradek_fields  # type: ignore[attr-defined]
    assert fields["reason"] == reason
    assert (fields["client_id"], fields["client_software"]) == ("shop", "old-client 0.1")
