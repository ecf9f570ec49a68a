"""Runs a sequence of requests (a conversation) with one broker, and records the responses.

A conversation is a function that sends requests by `ask`, each with a label, and may use values of earlier responses.
It runs once at each level of versions (each API in its lowest, middle or highest version), each time with its own
topics, groups and transactional ids.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any, Final, Literal

from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from tests.e2e.kafka.same_answers.answers import Answer, answer_of
from tests.e2e.kafka.same_answers.wire import Address, Connection, Fields, Login

Level = Literal["lowest", "middle", "highest"]
LEVELS: Final[tuple[Level, ...]] = ("lowest", "middle", "highest")
Answers = dict[str, Answer]
"""Answers by label."""

_PASSING: Final = frozenset({14, 15, 16, 51})
"""Error codes while a coordinator loads, moves, or completes a transaction. Clients then repeat the request."""
_READY_S_MAX: Final = 30.0
_KEPT: Final = {"retention_ms": "-1", "segment_ms": str(1 << 60)}
"""Configs that keep all records of a topic, although their timestamps are old, in one segment."""


class Conversation:
    """One run of a conversation with one broker at one level. `answers` has the responses so far, in order."""

    def __init__(
        self, address: Address, name: str, level: Level, asks_at: Address, login: Login | None
    ) -> None:
        self._connection = Connection(asks_at, login)
        self._unrecorded = Connection(address)
        self._level = level
        self._suffix = f"{name}-{level}".replace("_", "-")
        self._names: dict[Any, str] = {}
        self.answers: Answers = {}

    def close(self) -> None:
        self._connection.close()
        self._unrecorded.close()

    def named(self, noun: str) -> str:
        """Return a name of a topic, group or id that only this conversation uses."""
        name = f"{noun}-{self._suffix}"
        self._names[name] = noun
        return name

    def call(self, value: Any, word: str) -> Any:
        """Replace a value that differs between clusters, such as a member id, by this word in recorded responses.
        Return the value.
        """
        if value not in (None, ""):
            self._names[value] = word
        return value

    def version(self, key: ApiKey) -> int:
        """Return the version of an API at this level."""
        served = SUPPORTED[key]
        middle = (served.lowest + served.highest) // 2
        return {"lowest": served.lowest, "middle": middle, "highest": served.highest}[self._level]

    def ask(self, label: str, key: ApiKey, version: int | None = None, /, **fields: Any) -> Any:
        """Send a request and record its response. Return the response, or a text if there is none.

        If a client would repeat the request at once (a retriable error), the request is repeated.
        """
        version = self.version(key) if version is None else version
        response = self.once(key, version, **fields)
        self.record(f"{key.name} {version}: {label}", response)
        return response

    def once(self, key: ApiKey, version: int, /, **fields: Any) -> Any:
        """Do the same as `ask`, without recording the response."""
        deadline_s = time.monotonic() + _READY_S_MAX
        while True:
            response = self._connection.ask(key, version, fields)
            if not _error_codes(response) & _PASSING or time.monotonic() > deadline_s:
                return response
            time.sleep(0.1)

    def record(self, label: str, response: Any) -> None:
        assert label not in self.answers, f"two requests are called {label}"
        self.answers[label] = answer_of(response, self._names)

    def exchange(self, label: str, frame: bytes, read: Callable[[bytes], Any]) -> None:
        """Send raw bytes and record the bytes of the response."""
        content = self._connection.exchange(frame, wait_s=3.0)
        self.record(label, content if isinstance(content, str) else read(content))

    def prepare(self, key: ApiKey, version: int, /, **fields: Any) -> Any:
        """Send a request whose response is not compared, and repeat it as long as it gets a retriable error."""
        deadline_s = time.monotonic() + _READY_S_MAX
        while True:
            response = self._unrecorded.ask(key, version, fields)
            if not _error_codes(response) & (_PASSING | {3, 5, 6, 100}):
                return response
            assert time.monotonic() < deadline_s, (key.name, fields, response)
            time.sleep(0.1)

    def topic(self, noun: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic that only this conversation uses, and wait for its leaders; return its name."""
        name = self.named(noun)
        configs = _KEPT | configs
        items = [
            {"name": config.replace("_", "."), "value": value} for config, value in configs.items()
        ]
        created = self.prepare(
            ApiKey.CREATE_TOPICS,
            7,
            topics=[
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "configs": items,
                }
            ],
            timeout_ms=30_000,
        )
        assert created["topics"][0]["error_code"] == 0, created
        self.topic_id(name)
        ends = [
            {"partition_index": index, "timestamp": -1, "current_leader_epoch": -1}
            for index in range(partitions)
        ]
        topics = [{"name": name, "partitions": ends}]
        self.prepare(ApiKey.LIST_OFFSETS, 8, replica_id=-1, topics=topics)
        return name

    def settle(self) -> None:
        """Wait until the broker has read all earlier changes of the metadata.

        Kafka's controller responds to a change before the brokers have read it. They read changes in order, so
        a broker that knows the leaders of a newer topic knows the earlier changes too.
        """
        self.topic(f"barrier{len(self.answers)}")

    def topic_id(self, name: str) -> uuid.UUID:
        """Return the id of a topic, after all its leaders are elected."""
        found = self.prepare(ApiKey.METADATA, 12, topics=[{"name": name, "topic_id": bytes(16)}])
        topic_id = found["topics"][0]["topic_id"]
        assert isinstance(topic_id, uuid.UUID)
        self._names[topic_id] = f"id of {self._names.get(name, name)}"
        return topic_id


def _error_codes(response: Any) -> set[int]:
    if isinstance(response, list):
        return set().union(*map(_error_codes, response))
    if not isinstance(response, dict):
        return set()
    codes = {value for name, value in response.items() if name.endswith("error_code")}
    return codes.union(*(_error_codes(value) for value in response.values()))


Talk = Callable[[Conversation], None]


def hold(
    address: Address,
    talk: Talk,
    level: Level,
    asks_at: Address | None = None,
    login: Login | None = None,
) -> Answers:
    """Run a conversation, and return the broker's responses. If `asks_at` is given, requests whose responses are
    recorded go to this listener of the broker, where the client logs in.
    """
    conversation = Conversation(address, talk.__name__, level, asks_at or address, login)
    try:
        talk(conversation)
    finally:
        conversation.close()
    return conversation.answers


__all__ = ["LEVELS", "Answers", "Conversation", "Fields", "Level", "Talk", "hold"]
