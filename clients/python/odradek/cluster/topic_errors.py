"""Errors about topics, and the note about a topic that brokers created because a client named it.

The usual cause of a topic that does not exist is a misspelt name, so the texts name the most similar topics of the
cluster.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from odradek.cluster.metadata_cache import Topic
from odradek.cluster.turns import slices_in_turns
from odradek.errors import InvalidTopic, OdradekError, UnknownTopic, error_of
from odradek.spelling import similar_to
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.topic_names import topic_name_error

FETCH_S_MAX: Final = 2.0
"""How long to wait for the names of the topics of the cluster."""
SEARCH_S_MAX: Final = 3.0
"""How long one search for similar topics may take, including the wait for other searches."""
SEARCHES_MAX: Final = 4
KEPT_S: Final = 5.0
SIMILAR_MAX: Final = 3
NOTED_MAX: Final = 1_000
"""The number of created topics that a client remembers, so that it names each of them once."""
NAMES_COMPARED_MAX: Final = 5_000
"""In a cluster with more topics, no similar topic is named, because each comparison takes up to 50 us of CPU time."""
NAMES_PER_TURN: Final = 50

_log = logging.getLogger(__name__)


class FetchMetadata(Protocol):
    """`Cluster.metadata`: sends a request to any broker."""

    async def __call__(
        self, request: pb.MetadataRequest, *, timeout_s: float
    ) -> pb.MetadataResponse: ...


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
            f"topic {name!r} does not exist",
            code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            hint=f"{_creation_of(name)}, or check the name",
        )
    if fault or code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        return InvalidTopic(
            f"topic {name!r}: {fault or message or 'the name is not allowed'}",
            code=ErrorCode.INVALID_TOPIC_EXCEPTION,
        )
    return error_of(code, f"topic {name!r}", message)


def _creation_of(name: str) -> str:
    return f"create it (`odradek topic create {name}`)"


class MissingTopics:
    """Makes the errors and warnings about topics that did not exist when a client named them.

    With `suggests`, the texts name similar topics. This costs the metadata of all topics, and tenths of a second of CPU
    time in a cluster with thousands of topics. Many tasks of a program may name missing topics at once. So one task
    searches at a time, and the names of all topics and the results are kept for KEPT_S. While SEARCHES_MAX names are
    searched for, the texts for further names suggest no topics.
    """

    def __init__(self, fetch: FetchMetadata, *, suggests: bool) -> None:
        self.on_created: Callable[[str], object] = _log.warning
        """Called with a sentence for the user when brokers have created a topic that this client named."""
        self._fetch = fetch
        self._suggests = suggests
        self._created: dict[bytes, None] = {}  # the ids of topics that `note_creation` has named
        self._names: list[str] = []
        self._similar: dict[str, list[str]] = {}  # by name, for as long as `_names` is kept
        self._kept_until_s = 0.0
        # The number of tasks that search, or wait to search, for the topics similar to a name.
        self._searched: Counter[str] = Counter()
        self._turn = asyncio.Lock()

    async def error(
        self, name: str, *, was_creation_requested: bool = False, timeout_s: float = SEARCH_S_MAX
    ) -> UnknownTopic:
        """Return the error for a topic that does not exist. It names similar topics if they are found in `timeout_s`.

        `was_creation_requested`: the brokers were asked to create the topic, and did not do so.
        """
        problem = f"topic {name!r} does not exist"
        if was_creation_requested:
            problem += (
                ", and the brokers did not create it (auto.create.topics.enable of the cluster is false, or the right"
                " to create topics is missing)"
            )
        remedy = _creation_of(name)
        if similar := await self._similar_to(name, timeout_s):
            hint = f"did you mean {' or '.join(map(repr, similar))}? If not, {remedy}"
        else:
            hint = f"{remedy}, or check the name"
        return UnknownTopic(problem, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, hint=hint)

    async def note_creation(self, topic: Topic) -> None:
        """Tell the user, once for each topic, that the brokers created a topic because this client named it."""
        if topic.topic_id in self._created:
            return
        if len(self._created) >= NOTED_MAX:
            del self._created[next(iter(self._created))]
        self._created[topic.topic_id] = None
        count = len(topic.partitions)
        partitions = "1 partition" if count == 1 else f"{count} partitions"
        note = f"topic {topic.name!r} did not exist and was created with {partitions}"
        if similar := await self._similar_to(topic.name, SEARCH_S_MAX):
            note += f"; similar topics: {', '.join(map(repr, similar))}"
        self.on_created(note)

    async def _similar_to(self, name: str, timeout_s: float) -> list[str]:
        """Return the names of up to SIMILAR_MAX topics that the caller may describe and that are most similar to
        `name`; [] if they are not found in time.
        """
        is_full = len(self._searched) >= SEARCHES_MAX and name not in self._searched
        if not self._suggests or is_full or topic_name_error(name):
            return []
        self._searched[name] += 1
        try:
            async with asyncio.timeout(min(timeout_s, SEARCH_S_MAX)), self._turn:
                return await self._search(name)
        except TimeoutError:
            return []
        finally:
            self._searched[name] -= 1
            if not self._searched[name]:
                del self._searched[name]

    async def _search(self, name: str) -> list[str]:
        """Look for similar topics among the kept names, or among those of a new response.

        The names are compared in pieces, between which other tasks of the event loop can run.
        """
        if time.monotonic() >= self._kept_until_s:
            try:
                self._names = await self._all_names()
            except OdradekError:
                self._names = []
            self._similar.clear()
            self._kept_until_s = time.monotonic() + KEPT_S
        if name not in self._similar:
            similar: list[str] = []
            async for names in slices_in_turns(self._names, NAMES_PER_TURN):
                similar += similar_to(name, set(names) - {name}, count_max=SIMILAR_MAX)
            if len(self._similar) >= NOTED_MAX:
                self._similar.clear()
            self._similar[name] = similar_to(name, similar, count_max=SIMILAR_MAX)
        return self._similar[name]

    async def _all_names(self) -> list[str]:
        """Return the names of all topics, except internal ones; [] if there are more than NAMES_COMPARED_MAX."""
        response = await self._fetch(pb.MetadataRequest(all_topics=True), timeout_s=FETCH_S_MAX)
        if len(response.topics) > NAMES_COMPARED_MAX:
            return []
        return [t.name for t in response.topics if not (t.is_internal or t.error_code)]
