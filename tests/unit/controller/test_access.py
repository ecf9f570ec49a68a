"""Access control entries and users: which requests the controller accepts, and which it refuses and why."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from odradek_metadata_quorum.controller import access
from odradek_metadata_quorum.controller.access import (
    AclEntry,
    ScramDeletion,
    ScramUpsertion,
    content,
    matches,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import ScramMechanism
from tests.unit.controller.cluster import cluster_with_topic


def find_acls(image: MetadataImage, wanted: AclEntry) -> list[AclEntry]:
    return [content(record) for record in image.acls.values() if matches(wanted, record)]


@contextmanager
def no_longer_than_a_lease() -> Iterator[None]:
    """Assert that the `with` block takes less CPU time than a broker's lease lasts.

    If it took longer, heartbeats would get no response until the leases of the brokers expire.
    """
    began_s = time.process_time()
    yield
    assert time.process_time() - began_s < 2.0


def acl(**values: Any) -> AclEntry:
    return AclEntry(
        **{
            "resource_type": 2,
            "resource_name": "t",
            "pattern_type": 3,
            "principal": "User:alice",
            "host": "*",
            "operation": 3,
            "permission_type": 3,
            **values,
        }
    )


ANYTHING = AclEntry(
    resource_type=1,
    resource_name="",
    pattern_type=1,
    principal="",
    host="",
    operation=1,
    permission_type=1,
)


def test_entries_are_added_once_found_and_deleted() -> None:
    found = cluster_with_topic()
    entries = (acl(), acl(principal="User:bob"), acl())
    outcomes = found.decide(access.create_acls, entries)
    assert all(outcome.is_good for outcome in outcomes)
    assert set(find_acls(found.image, ANYTHING)) == set(entries)
    assert len(found.image.acls) == 2
    results = found.decide(access.delete_acls, (acl(principal="User:bob"), ANYTHING))
    assert [gone for _, gone in results] == [(acl(principal="User:bob"),), (acl(),)]
    assert not found.image.acls


def test_many_entries_are_deleted_by_their_names_without_a_look_at_all_of_them() -> None:
    found = cluster_with_topic()
    entries = tuple(acl(resource_name=f"topic-{number}") for number in range(5_000))
    found.decide(access.create_acls, entries)
    with no_longer_than_a_lease():
        results = found.decide(access.delete_acls, entries)
    assert [gone for _, gone in results] == [(entry,) for entry in entries]
    assert not found.image.acls


def test_filters_that_look_at_all_entries_are_so_many_in_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "LOOKS_MAX", 5)
    found = cluster_with_topic()
    found.decide(access.create_acls, (acl(), acl(principal="User:bob")))
    bobs = replace(ANYTHING, principal="User:bob")
    nobodys = acl(resource_name="", principal="User:nobody")
    results = found.decide(access.delete_acls, (nobodys, nobodys, bobs, acl(), ANYTHING))
    assert [outcome.error for outcome, _ in results] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.NONE,  # names its one entry: that is no look
        ErrorCode.NONE,
    ]
    assert [gone for _, gone in results][3:] == [(acl(),), (acl(principal="User:bob"),)]


@pytest.mark.parametrize(
    ("stored", "finds"),
    [
        ({}, True),
        ({"resource_name": "*"}, True),
        ({"resource_name": "other"}, False),
        ({"resource_name": "top", "pattern_type": 4}, False),
        ({"resource_name": "t", "pattern_type": 4}, True),
    ],
)
def test_match_finds_what_applies_to_a_name(stored: dict[str, Any], finds: bool) -> None:
    found = cluster_with_topic()
    found.decide(access.create_acls, (acl(**stored),))
    wanted = acl(pattern_type=2)
    assert bool(find_acls(found.image, wanted)) is finds


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type": 1},
        {"resource_type": 99},
        {"pattern_type": 2},
        {"operation": 1},
        {"permission_type": 1},
        {"resource_name": ""},
        {"resource_type": 4, "resource_name": "other"},
        {"principal": "alice"},
        {"principal": "User:"},
        {"host": ""},
    ],
)
def test_entries_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    found = cluster_with_topic()
    (outcome,) = found.decide(access.create_acls, (acl(**wrong),))
    assert outcome.error is ErrorCode.INVALID_REQUEST
    assert outcome.message
    assert not found.image.acls


# --- users


def upsertion(**values: Any) -> ScramUpsertion:
    return ScramUpsertion(
        **{
            "user": "alice",
            "mechanism": 1,
            "iterations": 4096,
            "salt": b"saltsalt",
            "salted_password": hashlib.pbkdf2_hmac("sha256", b"secret", b"saltsalt", 4096),
            **values,
        }
    )


def test_what_is_stored_checks_a_login_and_is_none() -> None:
    found = cluster_with_topic()
    ((user, outcome),) = found.decide(access.alter_scram_users, (upsertion(),))
    assert (user, outcome.is_good) == ("alice", True)
    credential = found.image.scram["alice", ScramMechanism.SHA_256]
    client_key = hmac.digest(upsertion().salted_password, b"Client Key", "sha256")
    assert credential.stored_key == hashlib.sha256(client_key).digest()
    assert client_key not in (credential.stored_key, credential.server_key)
    deletion = ScramDeletion(user="alice", mechanism=1)
    assert found.decide(access.alter_scram_users, (deletion,))[0][1].is_good
    assert not found.image.scram
    ((_, again),) = found.decide(access.alter_scram_users, (deletion,))
    assert again.error is ErrorCode.RESOURCE_NOT_FOUND


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"mechanism": 0}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 1_000_000}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b"s" * 257}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salted_password": b"short"}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"user": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_weak_credentials_are_refused(wrong: dict[str, Any], error: ErrorCode) -> None:
    found = cluster_with_topic()
    ((_, outcome),) = found.decide(access.alter_scram_users, (upsertion(**wrong),))
    assert outcome.error is error
    assert not found.image.scram


@pytest.mark.parametrize("salt", [b"s", b"salt", b"s" * 256])
def test_salts_of_any_length_that_tools_send_are_taken(salt: bytes) -> None:
    found = cluster_with_topic()
    change = found.controller.decide(
        found.now_ms, access.alter_scram_users, (upsertion(salt=salt),)
    )
    ((_, outcome),) = found.commit(change)
    assert outcome.is_good
    assert found.image.scram["alice", ScramMechanism.SHA_256].salt == salt


def test_thousands_of_users_at_once_do_not_stop_the_controller() -> None:
    found = cluster_with_topic()
    given = tuple(upsertion(user=f"user-{number}") for number in range(6_000))
    with no_longer_than_a_lease():
        outcomes = found.decide(access.alter_scram_users, (*given, given[0]))
    assert sum(outcome.is_good for _, outcome in outcomes) == len(given) - 1
    assert dict(outcomes)["user-0"].error is ErrorCode.DUPLICATE_RESOURCE


def test_a_user_with_one_bad_change_is_not_changed_at_all() -> None:
    found = cluster_with_topic()
    results = dict(
        found.decide(
            access.alter_scram_users,
            (upsertion(), upsertion(mechanism=2), upsertion(user="bob")),
        )
    )
    assert results["alice"].error is ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert results["bob"].is_good
    assert [user for user, _ in found.image.scram] == ["bob"]
