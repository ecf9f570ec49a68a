"""Fetch sessions (KIP-227): what a client fetches is remembered, and only changes are exchanged.

    full request, epoch 0 --> new session, epoch 1 expected next
    incremental, epoch n  --> partitions added, changed or forgotten; n + 1 expected next
    epoch -1              --> the session is dropped, and the request is answered whole

An incremental answer leaves out partitions of which nothing changed since the last one. The
sessions of a broker are bounded, and so are the bytes that they take, together and of one owner
(`odradek_runtime.budget.shares`): the one used least recently goes, if it rested long enough;
otherwise the newcomer gets no session (id 0) and goes on with full requests. So does whoever may not
read everything that it fetches: nothing is remembered of a topic that its client may not read. A
session belongs to its principal: the id of another one's is not found.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from odradek_protocol.identity import PartitionIndex, TopicId, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.fetch import FetchPartition, FetchRequest
from odradek_runtime.budget.shares import Shares

SESSIONS_MAX: Final = 1000
REST_MS_MIN: Final = 120_000
BYTES_MAX: Final = 96 << 20  # of all sessions: about 100,000 partitions
OWNER_BYTES_MAX: Final = 64 << 20
PARTITION_BYTES: Final = 700  # of one partition that is remembered, without its topic's name
_EPOCH_MAX: Final = (1 << 31) - 1
_FINAL_EPOCH: Final = -1

Key = tuple[TopicName | TopicId, PartitionIndex]


class Wanted(NamedTuple):
    """One partition of a fetch: the topic as the client names it, and what it wants."""

    name: TopicName | None
    topic_id: TopicId
    partition: FetchPartition

    @property
    def key(self) -> Key:
        """The name or the id, and the index."""
        topic = self.topic_id if self.name is None else self.name
        return topic, PartitionIndex(self.partition.partition)


class _Remembered:
    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1


class FetchSession:
    """One client's partitions, in the order in which they are to be served."""

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

    def update(self, request: FetchRequest) -> None:
        """Add, change and forget what the request says."""
        for wanted in wanted_of(request):
            known = self._partitions.get(wanted.key)
            if known is None:
                self._partitions[wanted.key] = _Remembered(wanted)
                self.size_bytes += _size_bytes(wanted.name)
            else:
                known.wanted = wanted
        for topic in request.forgotten:
            name = topic.topic_id if topic.name is None else topic.name
            for index in topic.partitions:
                if self._partitions.pop((name, PartitionIndex(index)), None) is not None:
                    self.size_bytes -= _size_bytes(topic.name)

    def wanted(self) -> Sequence[Wanted]:
        """Everything, those first that have waited longest for records."""
        return [one.wanted for one in self._partitions.values()]

    def note_answer(
        self,
        key: Key,
        *,
        error: ErrorCode,
        high_watermark: int,
        log_start_offset: int,
        has_records: bool,
        says_more: bool,
    ) -> bool:
        """Whether a partition belongs into the next incremental answer; takes note that it goes.

        `says_more`: a preferred replica or a divergence. Who got records goes to the end of the
        line, so that a busy partition does not starve the others (KIP-74).
        """
        known = self._partitions.get(key)
        if known is None:
            return True
        changed = (
            has_records
            or says_more
            or error is not ErrorCode.NONE
            or known.high_watermark != high_watermark
            or known.log_start_offset != log_start_offset
        )
        known.high_watermark = high_watermark
        known.log_start_offset = log_start_offset
        if error is not ErrorCode.NONE:
            known.high_watermark = -1  # so that the recovery is told as well
        if has_records:
            self._partitions.move_to_end(key)
        return changed


class Begun(NamedTuple):
    """How a request is to be answered. With an error, only that is told."""

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
        """Find, make or drop the session that a request speaks of. The session's bytes are the
        owner's, and it is for partitions that the client `may_read`."""
        if request.session_epoch in (0, _FINAL_EPOCH):
            found = self._sessions.get(request.session_id)
            if found is not None and found.principal == principal:
                self._drop(found)
            wanted = list(wanted_of(request))
            session = None
            if (
                request.session_epoch == 0
                and wanted
                and all(map(may_read, wanted))
                and self._has_room(owner, sum(_size_bytes(one.name) for one in wanted), now_ms)
            ):
                session = self._new(principal, owner, uses_ids, now_ms)
                self._update(session, request)
            return Begun(ErrorCode.NONE, session, wanted, False)
        found = self._sessions.get(request.session_id)
        if found is None or found.principal != principal:
            return Begun(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None, (), True)
        if found.uses_ids != uses_ids:
            return Begun(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, None, (), True)
        if found.next_epoch != request.session_epoch:
            return Begun(ErrorCode.INVALID_FETCH_SESSION_EPOCH, None, (), True)
        found.next_epoch = found.next_epoch % _EPOCH_MAX + 1
        found.used_at_ms = now_ms
        self._sessions.move_to_end(found.id)
        if not all(map(may_read, wanted_of(request))):
            self._drop(found)
            return Begun(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None, (), True)
        self._update(found, request)
        if self.shares.refusal(found.owner, 0, "bytes") is not None:
            self._drop(found)
            return Begun(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None, (), True)
        return Begun(ErrorCode.NONE, found, found.wanted(), True)

    def _update(self, session: FetchSession, request: FetchRequest) -> None:
        before = session.size_bytes
        session.update(request)
        self.shares.give_back(session.owner, before)
        self.shares.take(session.owner, session.size_bytes)

    def _drop(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self.shares.give_back(session.owner, session.size_bytes)

    def _has_room(self, owner: str, size_bytes: int, now_ms: int) -> bool:
        """For a session of so many bytes; those that rest give way."""
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
    """The partitions that a request names, in its order."""
    for topic in request.topics:
        for partition in topic.partitions:
            yield Wanted(topic.name, topic.topic_id, partition)
