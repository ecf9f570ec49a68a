"""Checks every API with every right: a caller without the right is refused, and a caller with only this right is
served.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from typing import Any

import pytest

from odradek_broker.access.authorizer import AclAuthorizer
from odradek_broker.kafka.registry import Registry, load_handlers
from odradek_broker.kafka.request import Encoded
from odradek_broker.kafka.services import Services
from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.response_encoding import encode_message
from tests.unit.kafka import fake_broker
from tests.unit.kafka.requests_to_everything import FREE, HIGHEST, RIGHTS, message_of
from tests.unit.security.acl_entries import Right, entries_for

REFUSALS = {
    int(one)
    for one in (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_ID,  # by id, a topic that may not be seen is one that is not there
    )
}
GUARDED = [key for key, rights in RIGHTS.items() if rights != FREE]


async def ask(
    key: ApiKey, rights: Iterable[Right], version: int | None = None
) -> tuple[set[int], Any]:
    """Send a valid request of a caller with these rights; return all error codes of the response,
    and the broker.
    """
    authorizer = AclAuthorizer()
    authorizer.entries_changed(entries_for("User:alice", rights))
    served = fake_broker.services(authorizer)
    Registry(served)
    version = HIGHEST[key] if version is None else version
    handler, message = load_handlers()[key], message_of(key, version)
    # Ids are bytes once they are received.
    if key in (ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.TXN_OFFSET_COMMIT):
        message = handler.decode(version, memoryview(encode_message(message, version)))
    reply = handler.handle(fake_broker.request(served, key, version, message))
    if inspect.isawaitable(reply):
        async with asyncio.timeout(30):
            reply = await reply
    if isinstance(reply, Encoded):
        body = b"".join(bytes(one) for one in reply.buffers)
    else:
        body = bytes(encode_message(reply, version))
    decoded = messages.MESSAGES[key][1].decode(body, version=version)
    return set(codes(decoded.to_dict())), served


def codes(value: Any) -> Iterable[int]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "topic_config_error_code":
                continue  # the topic was made; its configs are told to who may describe them
            if name.endswith("error_code"):
                yield inner
            else:
                yield from codes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from codes(inner)


def test_the_matrix_has_every_api_that_is_advertised() -> None:
    assert set(RIGHTS) == set(load_handlers())


@pytest.mark.parametrize("key", GUARDED, ids=lambda key: key.name)
async def test_who_has_no_right_is_refused_and_changes_nothing(key: ApiKey) -> None:
    found, served = await ask(key, [])
    assert found & REFUSALS, f"{key.name} answered {found} to somebody without any right"
    assert not served.controllers.calls
    assert not served.partitions.appended
    assert not served.partitions.fetched


@pytest.mark.parametrize("key", GUARDED, ids=lambda key: key.name)
async def test_a_refusal_is_in_the_audit_log(key: ApiKey, caplog: pytest.LogCaptureFixture) -> None:
    await ask(key, [])
    told = [r.odradek_fields for r in caplog.records if r.name == "odradek_broker.audit"]  # type: ignore[attr-defined]
    assert told
    for fields in told:
        assert fields["principal"] == "User:alice"
        assert fields["host"] == "127.0.0.1"
        assert fields["request"] == key.name


@pytest.mark.parametrize("key", GUARDED, ids=lambda key: key.name)
async def test_who_has_just_the_right_ones_is_not_refused(key: ApiKey) -> None:
    found, _ = await ask(key, RIGHTS[key])
    assert not found & REFUSALS, f"{key.name} answered {found} to somebody with {RIGHTS[key]}"


@pytest.mark.parametrize(
    ("key", "missing"),
    [
        pytest.param(key, number, id=f"{key.name}-without-{RIGHTS[key][number][0].name}")
        for key in GUARDED
        for number in range(len(RIGHTS[key]))
        if len(RIGHTS[key]) > 1
    ],
)
async def test_each_right_of_several_is_needed(key: ApiKey, missing: int) -> None:
    rights = [one for number, one in enumerate(RIGHTS[key]) if number != missing]
    found, _ = await ask(key, rights)
    assert found & REFUSALS, f"{key.name} without {RIGHTS[key][missing]}: {found}"


@pytest.mark.parametrize("version", [12, 13, 16])
async def test_fetch_of_a_topic_that_may_only_be_described(version: int) -> None:
    found, served = await ask(ApiKey.FETCH, RIGHTS[ApiKey.METADATA], version)
    assert ErrorCode.TOPIC_AUTHORIZATION_FAILED in found
    assert not served.partitions.fetched


async def test_metadata_of_all_topics_leaves_out_what_may_not_be_described() -> None:
    authorizer = AclAuthorizer()
    authorizer.entries_changed(entries_for("User:alice", RIGHTS[ApiKey.METADATA]))
    served = fake_broker.services(authorizer)
    assert await _names_of_all_topics(served, "User:alice") == ["orders"]


async def test_kept_metadata_is_told_to_nobody_with_other_rights() -> None:
    authorizer = AclAuthorizer(["User:root"])
    served = fake_broker.services(authorizer)
    for _ in range(2):
        assert await _names_of_all_topics(served, "User:root") == ["orders", "payments"]
        assert await _names_of_all_topics(served, "User:alice") == []
    authorizer.entries_changed(entries_for("User:alice", RIGHTS[ApiKey.METADATA]))
    assert await _names_of_all_topics(served, "User:alice") == ["orders"]


async def _names_of_all_topics(served: Services, principal: str) -> list[str]:
    message = messages.MetadataRequest(version=12, topics=None)
    request = fake_broker.request(served, ApiKey.METADATA, 12, message, principal=principal)
    reply = await load_handlers()[ApiKey.METADATA].handle(request)
    body = b"".join(bytes(one) for one in reply.buffers)
    return [one.name for one in messages.MetadataResponse.decode(body, version=12).topics]


async def test_super_users_need_no_entry() -> None:
    served = fake_broker.services(AclAuthorizer(["User:root"]))
    message = messages.UnregisterBrokerRequest(version=0, broker_id=9)
    request = fake_broker.request(
        served, ApiKey.UNREGISTER_BROKER, 0, message, principal="User:root"
    )
    reply = await load_handlers()[ApiKey.UNREGISTER_BROKER].handle(request)
    assert reply.error_code == ErrorCode.NONE
