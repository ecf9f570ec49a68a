"""Sessions of gRPC clients that have logged in.

A login by SASL ends with a session, a random name that later calls carry. A session is valid on this broker alone, for
`lifetime_ms` at most, and no longer than the credential that proved it: it ends at once, with its streams, when its
user is deleted or gets another password. A session that was opened with a signed token ends with that token. Sessions
are kept in memory as digests, so neither a memory dump nor the time of a lookup reveals a name. A broker that restarts
has no sessions, and clients log in again.

There are never more than SESSIONS_MAX, nor more than SESSIONS_PER_USER_MAX of one user: a new session ends the user's
oldest one first, then the oldest of all.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from odradek_broker.access.sasl import Credentials
from odradek_protocol.metadata.records import UserScramCredential
from odradek_runtime.clock import monotonic_ms

SESSIONS_MAX: Final = 20_000
SESSIONS_PER_USER_MAX: Final = 1_000
_NAME_BYTES: Final = 32


@dataclass(slots=True, kw_only=True, eq=False)
class GrpcSession:
    """One login of a gRPC client. `streams` are the tasks of its long calls, cancelled when the session ends."""

    user: str
    credential: UserScramCredential | None  # None: the user logged in with a token
    ends_at_ms: int
    digest: bytes
    streams: set[asyncio.Task[object]] = field(default_factory=set)
    is_ended: bool = False

    @property
    def principal(self) -> str:
        """The principal that logged in."""
        return f"User:{self.user}"


class GrpcSessions:
    """All sessions of one broker. It is used only on the event loop."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        lifetime_ms: int,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self.lifetime_ms = lifetime_ms
        self._credentials = credentials
        self._clock_ms = clock_ms
        self._open: dict[bytes, GrpcSession] = {}  # the open sessions, oldest first
        self._of_user: dict[str, dict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, user: str, credential: UserScramCredential | None, *, lifetime_ms: int) -> str:
        """Open a session and return its name. `credential` is None if the user logged in with a token."""
        own = self._of_user.get(user, {})
        if len(own) >= SESSIONS_PER_USER_MAX:
            self._end(self._open[next(iter(own))])
        elif len(self._open) >= SESSIONS_MAX:
            self._end(next(iter(self._open.values())))
        name = secrets.token_urlsafe(_NAME_BYTES)
        session = GrpcSession(
            user=user,
            credential=credential,
            ends_at_ms=self._clock_ms() + lifetime_ms,
            digest=_digest(name),
        )
        self._open[session.digest] = session
        self._of_user.setdefault(user, {})[session.digest] = None
        return name

    def find(self, name: str) -> GrpcSession | None:
        """Return the session of that name if it is still valid."""
        session = self._open.get(_digest(name))
        if session is None:
            return None
        if self._clock_ms() >= session.ends_at_ms or not self._is_proved(session):
            self._end(session)
            return None
        return session

    def sweep(self) -> None:
        """End sessions that have expired or whose user has changed. The owner calls it periodically."""
        now_ms = self._clock_ms()
        for session in list(self._open.values()):
            if now_ms >= session.ends_at_ms or not self._is_proved(session):
                self._end(session)

    def _is_proved(self, session: GrpcSession) -> bool:
        credential = session.credential
        return (
            credential is None
            or self._credentials().get((credential.user, credential.mechanism)) == credential
        )

    def _end(self, session: GrpcSession) -> None:
        session.is_ended = True
        self._open.pop(session.digest, None)
        own = self._of_user.get(session.user, {})
        own.pop(session.digest, None)
        if not own:
            self._of_user.pop(session.user, None)
        for task in session.streams:
            task.cancel()


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode(errors="replace")).digest()
