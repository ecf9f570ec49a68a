"""Conversations about Fetch: ranges, leader epochs, isolation levels and fetch sessions."""

from __future__ import annotations

import uuid
from typing import Any

from odradek_protocol.kafka.api_keys import ApiKey
from tests.e2e.kafka.same_answers.conversation import Conversation
from tests.e2e.kafka.same_answers.records import fill

_UNKNOWN_ID = uuid.UUID(int=0xABCDEF)
_BY_ID = 13
_WITH_SESSIONS = 7


class Fetcher:
    """Fetches from one topic, by name and by id."""

    def __init__(self, talk: Conversation, topic: str) -> None:
        self._talk = talk
        self._topic = topic
        self._id = talk.topic_id(topic)
        self.version = talk.version(ApiKey.FETCH)

    def fetch(
        self,
        label: str,
        *parts: dict[str, Any],
        topic: str | None = None,
        topic_id: Any = None,
        forgotten: list[int] | None = None,
        **more: Any,
    ) -> Any:
        """Fetch partitions. Each is a dictionary of the fields that differ from the default."""
        name, an_id = topic if topic is not None else self._topic, topic_id or self._id
        ordinary = {
            "partition": 0,
            "current_leader_epoch": -1,
            "fetch_offset": 0,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        items = [ordinary | part for part in parts]
        fields = {
            "replica_id": -1,
            "replica_state": {"replica_id": -1, "replica_epoch": -1},
            "max_wait_ms": 100,
            "min_bytes": 0,
            "max_bytes": 1 << 20,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": name, "topic_id": an_id, "partitions": items}] if parts else [],
            "rack_id": "",
        } | more
        if forgotten is not None:
            fields["forgotten_topics_data"] = [
                {"topic": name, "topic_id": an_id, "partitions": forgotten}
            ]
        return self._talk.ask(label, ApiKey.FETCH, **fields)


def fetch(talk: Conversation) -> None:
    """Fetch without sessions."""
    topic = talk.topic("t", 2)
    fill(talk, topic)
    fetcher = Fetcher(talk, topic)
    one = fetcher.fetch
    for offset in (0, 1, 3, 5, 6, 7, 100, -1, -2, (1 << 63) - 1):
        one(f"offset {offset}", {"fetch_offset": offset})
    one("empty partition", {"partition": 1})
    one("empty partition, offset 1", {"partition": 1, "fetch_offset": 1})
    one("both", {}, {"partition": 1})
    one("twice", {}, {"fetch_offset": 2})
    for index in (2, -1):
        one(f"partition {index}", {"partition": index})
    one("known and missing partition", {}, {"partition": 7})
    one("unknown topic", {}, topic="nowhere", topic_id=_UNKNOWN_ID)
    one("no name and no id", {}, topic="", topic_id=uuid.UUID(int=0))
    one("no topics")
    for epoch in (0, 1, 9, -2):
        one(f"current epoch {epoch}", {"current_leader_epoch": epoch})
    for epoch in (0, 5, -2):
        one(f"last epoch {epoch}", {"last_fetched_epoch": epoch, "fetch_offset": 2})
    one("last epoch beyond the end", {"last_fetched_epoch": 0, "fetch_offset": 9})
    for level in (0, 1, 2, -1):
        one(f"level {level}", {}, isolation_level=level)
    for size in (0, 1, 80, 200, -1):
        one(f"partition bytes {size}", {"partition_max_bytes": size})
        one(f"bytes {size}", {}, {"partition": 1}, max_bytes=size)
    one("partition bytes 1 at the end", {"partition_max_bytes": 1, "fetch_offset": 6})
    one("log start", {"log_start_offset": 3})
    one("rack", {}, rack_id="a")
    one("wait negative", {"fetch_offset": 6}, max_wait_ms=-1, min_bytes=1)
    one("wait 0", {"fetch_offset": 6}, max_wait_ms=0, min_bytes=1)
    one("min bytes negative", {"fetch_offset": 6}, min_bytes=-1)
    one("other cluster", {}, cluster_id="another")
    for replica in (-2, 99):
        one(
            f"replica {replica}",
            {},
            replica_id=replica,
            replica_state={"replica_id": replica, "replica_epoch": -1},
        )


def fetch_sessions(talk: Conversation) -> None:
    """Fetch with fetch sessions, valid and invalid ones."""
    topic = talk.topic("t", 3)
    fill(talk, topic, batches=1)
    fetcher = Fetcher(talk, topic)
    if fetcher.version < _WITH_SESSIONS:
        return
    one = fetcher.fetch
    one("unknown session", {}, session_id=12345, session_epoch=1)
    one("unknown session, full", {}, session_id=12345, session_epoch=0)
    one("unknown session, to close", {}, session_id=12345, session_epoch=-1)
    one("no session, epoch 1", {}, session_epoch=1)
    one("no session, epoch -2", {}, session_epoch=-2)
    first = one("new", {}, {"partition": 1}, session_epoch=0)
    session = first["session_id"] if isinstance(first, dict) else 0
    talk.call(session, "the session")
    one("nothing new", session_id=session, session_epoch=1)
    one("epoch repeated", session_id=session, session_epoch=1)
    one("epoch too high", session_id=session, session_epoch=9)
    one("moved", {"fetch_offset": 2}, session_id=session, session_epoch=2)
    one("nothing after that", session_id=session, session_epoch=3)
    one("added", {"partition": 2}, session_id=session, session_epoch=4)
    one("missing partition added", {"partition": 9}, session_id=session, session_epoch=5)
    one("and again", session_id=session, session_epoch=6)
    one("forgotten", forgotten=[9, 0], session_id=session, session_epoch=7)
    one("forgotten again", forgotten=[9], session_id=session, session_epoch=8)
    one(
        "unknown topic added",
        {},
        topic="nowhere",
        topic_id=_UNKNOWN_ID,
        session_id=session,
        session_epoch=9,
    )
    one("unknown topic again", session_id=session, session_epoch=10)
    one("wrong offset", {"partition": 1, "fetch_offset": 50}, session_id=session, session_epoch=11)
    one("wrong offset again", session_id=session, session_epoch=12)
    one("all forgotten", forgotten=[1, 2], session_id=session, session_epoch=13)
    one("nothing is left", session_id=session, session_epoch=14)
    one("closed", session_id=session, session_epoch=-1)
    one("after the end", session_id=session, session_epoch=15)
    empty = one("new and empty", session_epoch=0)
    talk.call(empty["session_id"] if isinstance(empty, dict) else 0, "the empty session")


TALKS = (fetch, fetch_sessions)
