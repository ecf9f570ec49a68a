"""Fetch sessions (KIP-227): the broker remembers what a client fetches, and they exchange only changes.

    full request, epoch 0 --> new session, epoch 1 expected next
    incremental, epoch n  --> partitions added, changed or forgotten; n + 1 expected next
    epoch -1              --> the session is dropped, and the response is full

An incremental response omits partitions in which nothing changed since the last one. The sessions of a broker are
bounded, and so are the bytes that they take, together and by owner (`odradek_runtime.budget.shares`). The least
recently used session makes room if it has been idle long enough; otherwise a new client gets no session (id 0) and
continues with full requests. So does a client that may not read everything that it fetches: a session holds nothing of
a topic that its client may not read. A session belongs to its principal; for others its id is unknown.
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
BYTES_MAX: Final = 96 << 20  # memory of all sessions, enough for about 100,000 partitions
OWNER_BYTES_MAX: Final = 64 << 20
PARTITION_BYTES: Final = 700  # memory of one partition in a session, without its topic's name
_EPOCH_MAX: Final = (1 << 31) - 1
_FINAL_EPOCH: Final = -1

Key = tuple[TopicName | TopicId, PartitionIndex]


class Wanted(NamedTuple):
    """One partition that a client fetches: its topic as the client names it, the offset and the limits."""

    name: TopicName | None
    topic_id: TopicId
    partition: FetchPartition

    @property
    def key(self) -> Key:
        """The topic's name, or else its id, and the partition's index."""
        topic = self.topic_id if self.name is None else self.name
        return topic, PartitionIndex(self.partition.partition)


class _Remembered:
    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1


class FetchSession:
    """One client's partitions, in the order in which to serve them."""

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
        """Add, change and forget partitions as a request says; return by how many bytes the session grew."""
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
        """Return all partitions. Those that have waited longest for records are first."""
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
        """Record the state of a partition that is sent, and return whether an incremental response must include the
        partition.

        `says_more`: the response names a preferred replica or a divergence. A partition that got records goes
        to the end of the line, so that a busy one does not starve the others (KIP-74).
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
            remembered.high_watermark = -1  # so that the next response contains the partition again
        if has_records:
            self._partitions.move_to_end(key)
        return changed


class Begun(NamedTuple):
    """The session of a request, and the partitions to serve. With an error, the response has only the error."""

    error: ErrorCode
    session: FetchSession | None
    wanted: Sequence[Wanted]
    is_incremental: bool


class FetchSessions:
    """All sessions of a broker."""

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
        """Do the same as `begin_steps`, in one piece."""
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
        """Find, create or drop the session that a request names, with a step after some partitions.

        The session's bytes count against the owner's share. It holds only partitions that the client `may_read`.
        Other requests may run between the steps: a session that one of them dropped is gone.
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
        """Update a session, and its owner's share, in which the session counted `counted_bytes` until now.

        If the request ends in between, because its connection was lost, the session has partitions that are not
        counted: it is dropped.
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
        """Make room for a session of that size, by dropping idle ones; return whether there is room."""
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
    """Yield the partitions that a request names, in its order."""
    for topic in request.topics:
        for partition in topic.partitions:
            yield Wanted(topic.name, topic.topic_id, partition)
