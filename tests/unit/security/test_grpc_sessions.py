"""The table of gRPC sessions is bounded, deletes expired sessions, and never reveals their
names.
"""

from __future__ import annotations

import pytest

from odradek_broker.access import grpc_sessions
from odradek_broker.access.grpc_sessions import GrpcSessions
from odradek_protocol.metadata.records import ScramMechanism, UserScramCredential


def credential(user: str, key: bytes = b"k") -> UserScramCredential:
    return UserScramCredential(
        user=user,
        mechanism=ScramMechanism.SHA_256,
        salt=b"salt",
        stored_key=key,
        server_key=key,
        iterations=4096,
    )


class Table:
    def __init__(self, lifetime_ms: int = 1000) -> None:
        self.now_ms = 0
        self.users: dict[tuple[str, ScramMechanism], UserScramCredential] = {}
        self.sessions = GrpcSessions(
            lambda: self.users, lifetime_ms=lifetime_ms, clock_ms=lambda: self.now_ms
        )

    def open(self, user: str) -> str:
        one = self.users.setdefault((user, ScramMechanism.SHA_256), credential(user))
        return self.sessions.open(user, one, lifetime_ms=self.sessions.lifetime_ms)


def test_a_session_is_found_by_its_name_until_its_time_is_over() -> None:
    table = Table()
    name = table.open("alice")
    found = table.sessions.find(name)
    assert found is not None
    assert found.principal == "User:alice"
    assert table.sessions.find(name + "x") is None
    assert table.sessions.find("") is None
    table.now_ms = 1000
    assert table.sessions.find(name) is None
    assert found.is_ended
    assert len(table.sessions) == 0


def test_it_holds_no_longer_than_the_credential() -> None:
    table = Table()
    first, second = table.open("alice"), table.open("bob")
    table.users["alice", ScramMechanism.SHA_256] = credential("alice", b"another")
    table.sessions.sweep()
    assert table.sessions.find(first) is None
    assert table.sessions.find(second) is not None


def test_the_oldest_of_a_user_who_has_too_many_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_sessions, "SESSIONS_PER_USER_MAX", 3)
    table = Table()
    other = table.open("bob")
    names = [table.open("alice") for _ in range(5)]
    assert [table.sessions.find(name) is not None for name in names] == [False] * 2 + [True] * 3
    assert table.sessions.find(other) is not None


def test_the_oldest_of_all_goes_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_sessions, "SESSIONS_MAX", 3)
    table = Table()
    names = [table.open(user) for user in "abcde"]
    assert [table.sessions.find(name) is not None for name in names] == [False] * 2 + [True] * 3
    assert len(table.sessions) == 3


def test_names_are_not_kept_nor_shown() -> None:
    table = Table()
    name = table.open("alice")
    assert table.open("alice") != name
    found = table.sessions.find(name)
    assert name not in repr(found)
    assert name not in repr(vars(table.sessions))
