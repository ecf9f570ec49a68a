"""Fetch sessions (KIP-227): the broker stores which partitions a client fetches, so that later requests and responses
contain only changes.

    full request, epoch 0        --> new session; epoch 1 is expected next
    incremental request, epoch n --> partitions are added, changed or removed; n + 1 is expected next
    epoch -1                     --> the session is deleted, and the response is full

An incremental response omits partitions in which nothing changed since the last response. The number of sessions is
bounded, and so is their memory, both in all and for each owner (`odradek_runtime.budget.shares`). At a bound, the least
recently used session is deleted if it has been idle long enough. Otherwise the client gets no session (id 0) and
continues with full requests. A client that may not read all topics that it fetches gets no session either, because a
session contains only topics that its client may read. A session can be used only by the principal that created it.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple

from odradek_protocol.identity import PartitionIndex, TopicId, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.fetch import (
    PARTITIONS_A_STEP,
    FetchPartition,
    FetchRequest,
    ForgottenTopic,
)
from odradek_protocol.kafka.request_decoding import all_steps
from odradek_runtime.budget.shares import Shares

SESSIONS_MAX: Final = 1000
REST_MS_MIN: Final = 120_000
"""A session that was used within this time is not deleted to make space for another session."""
BYTES_MAX: Final = 96 << 20  # memory of all sessions, enough for about 100,000 partitions
OWNER_BYTES_MAX: Final = 64 << 20
PARTITION_BYTES: Final = 700  # memory of one partition in a session, without its topic's name
_EPOCH_MAX: Final = (1 << 31) - 1
_FINAL_EPOCH: Final = -1

Key = tuple[TopicName | TopicId, PartitionIndex]


class Wanted(NamedTuple):
    """One partition that a client fetches. `name` is None if the client identifies topics by id."""

    name: TopicName | None
    topic_id: TopicId
    partition: FetchPartition

    @property
    def key(self) -> Key:
        """The topic's name, or its id if the name is None, and the partition's index."""
        topic = self.topic_id if self.name is None else self.name
        return topic, PartitionIndex(self.partition.partition)


class _Remembered:
    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1


class FetchSession:
    """The partitions that one client fetches, in the order in which they are read."""

    __slots__ = (
        "_partitions",
        "id",
        "next_epoch",
        "owner",
        "principal",
        "size_bytes",
        "used_at_ms",
        "uses_ids",
    )

    def __init__(
        self, *, session_id: int, principal: str, owner: str, uses_ids: bool, now_ms: int
    ) -> None:
        self.id = session_id
        self.principal = principal
        self.owner = owner
        self.size_bytes = 0
        self.uses_ids = uses_ids
        self.next_epoch = 1
        self.used_at_ms = now_ms
        self._partitions: OrderedDict[Key, _Remembered] = OrderedDict()

    def __len__(self) -> int:
        return len(self._partitions)

    def update(
        self, wanted: Sequence[Wanted], forgotten: Sequence[ForgottenTopic]
    ) -> Generator[None, None, int]:
        """Add, change and remove partitions as a request says. Return by how many bytes the session grew.

        Yields after every few partitions, so that other work can run.
        """
        growth = 0
        for number, partition in enumerate(wanted, 1):
            key = partition.key
            remembered = self._partitions.get(key)
            if remembered is None:
                self._partitions[key] = _Remembered(partition)
                growth += _size_bytes(partition.name)
            else:
                remembered.wanted = partition
            if not number % PARTITIONS_A_STEP:
                yield
        for topic in forgotten:
            name = topic.topic_id if topic.name is None else topic.name
            for number, index in enumerate(topic.partitions, 1):
                if self._partitions.pop((name, PartitionIndex(index)), None) is not None:
                    growth -= _size_bytes(topic.name)
                if not number % PARTITIONS_A_STEP:
                    yield
        return growth

    def wanted(self) -> Sequence[Wanted]:
        """Return all partitions, first those that have received no records for the longest time."""
        return [remembered.wanted for remembered in self._partitions.values()]

    def note_response(
        self,
        key: Key,
        *,
        error: ErrorCode,
        high_watermark: int,
        log_start_offset: int,
        has_records: bool,
        says_more: bool,
    ) -> bool:
        """Record the state of a partition that a response reports. Return whether an incremental response must include
        the partition.

        `says_more` means that the response has a preferred read replica or a diverging epoch for the partition. A
        partition with records moves to the end of the order, so that a busy partition does not starve the others
        (KIP-74).
        """
        remembered = self._partitions.get(key)
        if remembered is None:
            return True
        changed = (
            has_records
            or says_more
            or error is not ErrorCode.NONE
            or remembered.high_watermark != high_watermark
            or remembered.log_start_offset != log_start_offset
        )
        remembered.high_watermark = high_watermark
        remembered.log_start_offset = log_start_offset
        if error is not ErrorCode.NONE:
            remembered.high_watermark = -1  # the next response must contain the partition again
        if has_records:
            self._partitions.move_to_end(key)
        return changed


class Begun(NamedTuple):
    """The session of a request (None: there is no session), and the partitions to read. If there is an error, the
    response contains nothing else.
    """

    error: ErrorCode
    session: FetchSession | None
    wanted: Sequence[Wanted]
    is_incremental: bool


class FetchSessions:
    """All fetch sessions of a broker."""

    def __init__(
        self,
        sessions_max: int = SESSIONS_MAX,
        bytes_max: int = BYTES_MAX,
        owner_bytes_max: int = OWNER_BYTES_MAX,
    ) -> None:
        self._sessions_max = sessions_max
        self.shares = Shares(total_max=bytes_max, owner_max=owner_bytes_max)
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        request: FetchRequest,
        *,
        principal: str,
        owner: str,
        uses_ids: bool,
        now_ms: int,
        may_read: Callable[[Wanted], bool] = lambda _: True,
    ) -> Begun:
        """Run all steps of `begin_steps` and return its result."""
        return all_steps(
            self.begin_steps(
                request,
                principal=principal,
                owner=owner,
                uses_ids=uses_ids,
                now_ms=now_ms,
                may_read=may_read,
            )
        )

    def begin_steps(
        self,
        request: FetchRequest,
        *,
        principal: str,
        owner: str,
        uses_ids: bool,
        now_ms: int,
        may_read: Callable[[Wanted], bool] = lambda _: True,
    ) -> Generator[None, None, Begun]:
        """Find, create or delete the session that a request names. Yields after every few partitions.

        The memory of the session counts against the share of `owner`. A session contains only partitions that the
        client `may_read`. Other requests may run between the steps and delete the session; the result then has no
        session, or the error FETCH_SESSION_ID_NOT_FOUND.
        """
        wanted = []
        may_read_all = True
        for partition in wanted_of(request):
            wanted.append(partition)
            may_read_all = may_read_all and may_read(partition)
            if not len(wanted) % PARTITIONS_A_STEP:
                yield
        if request.session_epoch in (0, _FINAL_EPOCH):
            previous = self._sessions.get(request.session_id)
            if previous is not None and previous.principal == principal:
                self._drop(previous)
            size_bytes = sum([_size_bytes(partition.name) for partition in wanted])
            if (
                request.session_epoch != 0
                or not wanted
                or not may_read_all
                or not self._has_room(owner, size_bytes, now_ms)
            ):
                return Begun(ErrorCode.NONE, None, wanted, False)
            new_session = self._new(principal, owner, uses_ids, now_ms)
            new_session.size_bytes = size_bytes
            self.shares.take(owner, size_bytes)
            yield from self._update(
                new_session, wanted, request.forgotten, counted_bytes=size_bytes
            )
            is_kept = self._sessions.get(new_session.id) is new_session
            return Begun(ErrorCode.NONE, new_session if is_kept else None, wanted, False)
        session = self._sessions.get(request.session_id)
        if session is None or session.principal != principal:
            return Begun(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None, (), True)
        if session.uses_ids != uses_ids:
            return Begun(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, None, (), True)
        if session.next_epoch != request.session_epoch:
            return Begun(ErrorCode.INVALID_FETCH_SESSION_EPOCH, None, (), True)
        session.next_epoch = session.next_epoch % _EPOCH_MAX + 1
        session.used_at_ms = now_ms
        self._sessions.move_to_end(session.id)
        if not may_read_all:
            self._drop(session)
            return Begun(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None, (), True)
        yield from self._update(session, wanted, request.forgotten)
        if self._sessions.get(session.id) is not session:
            return Begun(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None, (), True)
        if self.shares.refusal(session.owner, 0, "bytes") is not None:
            self._drop(session)
            return Begun(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None, (), True)
        return Begun(ErrorCode.NONE, session, session.wanted(), True)

    def _update(
        self,
        session: FetchSession,
        wanted: Sequence[Wanted],
        forgotten: Sequence[ForgottenTopic],
        *,
        counted_bytes: int = 0,
    ) -> Generator[None, None, None]:
        """Update a session, and the memory that counts against its owner's share. `counted_bytes` are counted already.

        If the request is cancelled between two steps, because the connection was lost, the session contains partitions
        that are not counted. Such a session is deleted.
        """
        try:
            growth = (yield from session.update(wanted, forgotten)) - counted_bytes
        except GeneratorExit:
            if self._sessions.get(session.id) is session:
                self._drop(session)
            raise
        if self._sessions.get(session.id) is not session:
            return
        self.shares.give_back(session.owner, session.size_bytes)
        session.size_bytes += growth
        self.shares.take(session.owner, session.size_bytes)

    def _drop(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self.shares.give_back(session.owner, session.size_bytes)

    def _has_room(self, owner: str, size_bytes: int, now_ms: int) -> bool:
        """Delete idle sessions until there is room for a session of this size. Return whether there is room."""
        while size_bytes <= self.shares.owner_max and self._sessions_max:
            is_full = len(self._sessions) >= self._sessions_max
            if not is_full and self.shares.has_room(owner, size_bytes):
                return True
            if not self._sessions:
                break
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.used_at_ms < REST_MS_MIN:
                break
            self._drop(oldest)
        return False

    def _new(self, principal: str, owner: str, uses_ids: bool, now_ms: int) -> FetchSession:
        while (session_id := secrets.randbelow(_EPOCH_MAX) + 1) in self._sessions:
            continue
        session = FetchSession(
            session_id=session_id,
            principal=principal,
            owner=owner,
            uses_ids=uses_ids,
            now_ms=now_ms,
        )
        self._sessions[session_id] = session
        return session


def _size_bytes(name: str | None) -> int:
    return PARTITION_BYTES + len(name or "")


def wanted_of(request: FetchRequest) -> Iterator[Wanted]:
    """Yield the partitions of a request, in the order of the request."""
    for topic in request.topics:
        for partition in topic.partitions:
            yield Wanted(topic.name, topic.topic_id, partition)
