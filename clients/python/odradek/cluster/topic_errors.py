"""Errors about topics, and the note about a topic that brokers created because a producer named it.

The usual cause of a topic that does not exist is a misspelt name, so the texts name the most similar topics of the
cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from odradek.cluster.metadata_cache import Topic
from odradek.errors import InvalidTopic, OdradekError, UnknownTopic, error_of
from odradek.spelling import similar_to
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.topic_names import topic_name_error

FetchMetadata: TypeAlias = Callable[[pb.MetadataRequest], Awaitable[pb.MetadataResponse]]
NAMES_COMPARED_MAX: Final = 5_000
"""In a cluster with more topics, no similar topic is looked for, because the comparison would hold the event loop."""


def topic_error(
    name: str, topic: Topic | None, partition: int | None, code: int, message: str
) -> OdradekError:
    """Return the error for a topic, or for its `partition` if that is given. `code` and `message` are those of a
    broker's response, and `topic` is the topic in the cache.
    """
    fault = topic_name_error(name)
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not fault:
        if topic is not None and partition is not None:
            return UnknownTopic(
                f"topic {name!r} has {len(topic.partitions)} partitions, but no partition {partition}",
                code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                hint="the first partition is 0",
            )
        return UnknownTopic(
            f"topic {name!r} does not exist", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    if fault or code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        return InvalidTopic(
            f"topic {name!r}: {fault or message or 'the name is not allowed'}",
            code=ErrorCode.INVALID_TOPIC_EXCEPTION,
        )
    return error_of(code, f"topic {name!r}", message)


async def similar_topics(name: str, fetch: FetchMetadata) -> list[str]:
    """Return the names of up to three topics that the caller may describe and whose names are similar to `name`.

    The result is empty if no broker responds.
    """
    try:
        response = await fetch(pb.MetadataRequest(all_topics=True))
    except OdradekError:
        return []
    if len(response.topics) > NAMES_COMPARED_MAX:
        return []
    names = [t.name for t in response.topics if not (t.is_internal or t.error_code)]
    return similar_to(name, [known for known in names if known != name], count_max=3)


async def unknown_topic(
    name: str, fetch: FetchMetadata, *, was_creation_requested: bool = False
) -> UnknownTopic:
    """Return the error for a topic that does not exist.

    `was_creation_requested`: the brokers were asked to create the topic, and did not do so.
    """
    remedy = f"create it (`odradek topic create {name}`)"
    if was_creation_requested:
        remedy = (
            "the brokers do not create it (auto.create.topics.enable of the cluster is false, or the right to create"
            f" topics is missing): {remedy}"
        )
    if similar := await similar_topics(name, fetch):
        hint = f"did you mean {' or '.join(map(repr, similar))}? If not, {remedy}"
    else:
        hint = f"{remedy}, or check the name"
    return UnknownTopic(
        f"topic {name!r} does not exist", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, hint=hint
    )


async def creation_note(name: str, partition_count: int, fetch: FetchMetadata) -> str:
    """Return a sentence about a topic that the brokers created because a producer named it."""
    partitions = "1 partition" if partition_count == 1 else f"{partition_count} partitions"
    note = f"topic {name!r} did not exist and was created with {partitions}"
    if similar := await similar_topics(name, fetch):
        note += f"; similar topics: {', '.join(map(repr, similar))}"
    return note
