"""Sessions of gRPC clients that have logged in.

A login by SASL opens a session and returns its name, a random string that later calls send. A session is valid on this
broker alone, and for `lifetime_ms` at most. A session ends at once, and its streams are cancelled, when its user is
deleted or gets another password. A session that was opened with a signed token ends when the token expires. The broker
stores only digests of the names, so neither a memory dump nor the time of a lookup reveals a name. Sessions do not
survive a restart of the broker; clients log in again.

There are at most SESSIONS_PER_USER_MAX sessions of one user, and at most SESSIONS_MAX in all. At the limit, a new
session ends the oldest session of the user, or the oldest of all.
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
    """All gRPC sessions of one broker, used only on the event loop."""

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
        """Open a session and return its name, which is secret. `credential` is None for a login with a token."""
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
        """Return the session with that name, or None if it does not exist or is no longer valid."""
        session = self._open.get(_digest(name))
        if session is None:
            return None
        if self._clock_ms() >= session.ends_at_ms or not self._is_proved(session):
            self._end(session)
            return None
        return session

    def sweep(self) -> None:
        """End the sessions that have expired or whose user's credential has changed."""
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
