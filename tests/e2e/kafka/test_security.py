"""Unmodified clients create and use SCRAM users and access control entries."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.e2e.kafka.access import MECHANISMS, TIMEOUT_S, allow, done, make_user
from tests.e2e.kafka.conftest import Guarded

Login = Callable[..., dict[str, Any]]


@pytest.fixture
def admin(open_admin: AdminClient) -> AdminClient:
    return open_admin


@pytest.fixture
def login(guarded_ports: dict[str, int]) -> Login:
    def config(user: str, password: str = "secret", mechanism: str = "SCRAM-SHA-256") -> Any:
        return {
            "bootstrap.servers": f"127.0.0.1:{guarded_ports['KAFKA_SASL']}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "message.timeout.ms": 45_000,
        }

    return config


def outcome_of_produce(config: dict[str, Any], topic: str) -> int | None:
    outcomes: list[int | None] = []
    producer = ck.Producer(config)
    producer.produce(
        topic, b"x", on_delivery=lambda error, _: outcomes.append(error and error.code())
    )
    assert producer.flush(TIMEOUT_S) == 0
    return outcomes[0]


@pytest.mark.scenario("confluent-kafka", "sasl", "acl denied")
@pytest.mark.parametrize("mechanism", list(MECHANISMS))
def test_who_may_write_writes(admin: AdminClient, login: Login, topic: str, mechanism: str) -> None:
    user = f"u-{uuid.uuid4().hex[:8]}"
    make_user(admin, user, mechanism)
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    config = login(user, mechanism=mechanism)
    assert outcome_of_produce(config, topic) == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    prefix = topic[:-3]
    allow(
        admin,
        user,
        ResourceType.TOPIC,
        prefix,
        AclOperation.WRITE,
        pattern=ResourcePatternType.PREFIXED,
    )
    assert outcome_of_produce(config, topic) is None
    allow(
        admin,
        user,
        ResourceType.TOPIC,
        topic,
        AclOperation.WRITE,
        permission=AclPermissionType.DENY,
    )
    assert outcome_of_produce(config, topic) == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    any_of = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        f"User:{user}",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert len(admin.describe_acls(any_of).result(TIMEOUT_S)) == 2
    [gone] = [one.result(TIMEOUT_S) for one in admin.delete_acls([any_of]).values()]
    assert len(gone) == 2
    assert outcome_of_produce(config, topic) == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_reading_takes_the_group_and_the_topic(
    admin: AdminClient, login: Login, topic: str
) -> None:
    user = f"u-{uuid.uuid4().hex[:8]}"
    make_user(admin, user)
    done(admin.create_topics([NewTopic(topic, 1, 1), NewTopic(f"{topic}-hidden", 1, 1)]))
    allow(admin, user, ResourceType.TOPIC, topic, AclOperation.ALL)
    assert outcome_of_produce(login(user), topic) is None

    def first() -> ck.Message | None:
        config = {**login(user), "group.id": f"g-{topic}", "auto.offset.reset": "earliest"}
        del config["message.timeout.ms"]
        consumer = ck.Consumer(config)
        try:
            consumer.subscribe([topic])
            message = consumer.poll(TIMEOUT_S)
            assert list(consumer.list_topics(timeout=TIMEOUT_S).topics) == [topic]
            return message
        finally:
            consumer.close()

    refused = first()
    assert refused is not None
    assert refused.error().code() == ck.KafkaError.GROUP_AUTHORIZATION_FAILED
    allow(admin, user, ResourceType.GROUP, "*", AclOperation.READ)
    found = first()
    assert found is not None
    assert found.error() is None
    assert found.value() == b"x"


@pytest.mark.parametrize("user", ["known", "unknown"])
def test_a_wrong_password_and_an_unknown_user_are_told_the_same(
    admin: AdminClient, login: Login, user: str
) -> None:
    make_user(admin, "known")
    errors: list[ck.KafkaError] = []
    config = {**login(user, "wrong"), "error_cb": errors.append}
    producer = ck.Producer(config)
    for _ in range(600):
        producer.poll(0.1)
        if errors:
            break
    assert errors[0].code() == ck.KafkaError._AUTHENTICATION
    assert "authentication failed" in errors[0].str()


@pytest.mark.scenario("confluent-kafka", "sasl over tls")
@pytest.mark.parametrize("mechanism", list(MECHANISMS))
def test_a_login_over_tls(
    admin: AdminClient, guarded: Guarded, topic: str, mechanism: str, login: Login
) -> None:
    user = f"u-{uuid.uuid4().hex[:8]}"
    make_user(admin, user, mechanism)
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    allow(admin, user, ResourceType.TOPIC, topic, AclOperation.WRITE)
    config = login(user, mechanism=mechanism) | {
        "bootstrap.servers": f"127.0.0.1:{guarded.ports['KAFKA_TLS']}",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(guarded.ca),
    }
    assert outcome_of_produce(config, topic) is None
