"""Conversations about access: ACLs, SCRAM credentials and quotas."""

from __future__ import annotations

from typing import Any

from odradek_protocol.kafka.api_keys import ApiKey
from tests.e2e.kafka.same_answers.conversation import Conversation

ANY, TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, TOKEN, USER = 1, 2, 3, 4, 5, 6, 7
LITERAL, PREFIXED = 3, 4


def acls(talk: Conversation) -> None:
    """Create, describe and delete ACLs, by valid and invalid requests."""
    topic = talk.named("t")
    user = talk.call(f"User:{talk.named('bob')}", "the user")
    ordinary = {
        "resource_type": TOPIC,
        "resource_name": topic,
        "resource_pattern_type": LITERAL,
        "principal": user,
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }

    def create(label: str, *entries: dict[str, Any]) -> None:
        creations = [ordinary | entry for entry in entries]
        talk.ask(f"create {label}", ApiKey.CREATE_ACLS, creations=creations)

    create("none")
    create("one", {})
    create("again", {})
    create("twice", {"operation": 4}, {"operation": 4})
    create("prefixed", {"resource_pattern_type": PREFIXED})
    create("one wrong", {"operation": 8}, {"operation": 99})
    for field, values in (
        ("resource_type", (0, ANY, 99, -1, CLUSTER, GROUP, TRANSACTIONAL_ID, TOKEN, USER)),
        ("resource_name", ("", "*", "a b", "x" * 300)),
        ("resource_pattern_type", (0, 1, 2, 5, -1)),
        ("principal", ("", "bob", "User:", ":bob", "User:*", "Group:x", "user:bob")),
        ("host", ("", "127.0.0.1", "localhost", "10.0.0.0/8", "::1")),
        ("operation", (0, 1, 2, 12, 13, 14, 16, 99, -1)),
        ("permission_type", (0, 1, 2, 4, -1)),
    ):
        for value in values:
            create(f"{field} {str(value)[:9]!r}", {field: value})
    create("cluster", {"resource_type": CLUSTER, "resource_name": "kafka-cluster", "operation": 9})
    create(
        "cluster, prefixed",
        {
            "resource_type": CLUSTER,
            "resource_name": "kafka-cluster",
            "operation": 9,
            "resource_pattern_type": PREFIXED,
        },
    )
    create("cluster, other name", {"resource_type": CLUSTER, "resource_name": "x", "operation": 9})
    create("group that may write", {"resource_type": GROUP, "operation": 4})

    every = {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": user,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    filters: list[tuple[str, dict[str, Any]]] = [
        ("all of the user", {}),
        ("topic", {"resource_type_filter": TOPIC, "resource_name_filter": topic}),
        ("literal", {"resource_type_filter": TOPIC, "pattern_type_filter": LITERAL}),
        (
            "match",
            {
                "resource_type_filter": TOPIC,
                "resource_name_filter": topic + "x",
                "pattern_type_filter": 2,
            },
        ),
        ("prefixed", {"pattern_type_filter": PREFIXED}),
        ("operation", {"operation": 4}),
        ("deny", {"permission_type": 2}),
        ("host", {"host_filter": "127.0.0.1"}),
        ("empty name", {"resource_name_filter": ""}),
        ("empty principal", {"principal_filter": ""}),
        ("kind 0", {"resource_type_filter": 0}),
        ("kind 99", {"resource_type_filter": 99}),
        ("pattern 0", {"pattern_type_filter": 0}),
        ("pattern 99", {"pattern_type_filter": 99}),
        ("operation 0", {"operation": 0}),
        ("operation 99", {"operation": 99}),
        ("permission 0", {"permission_type": 0}),
        ("permission 99", {"permission_type": 99}),
        ("principal without kind", {"principal_filter": "bob"}),
    ]
    talk.settle()
    for label, changes in filters:
        talk.ask(f"describe {label}", ApiKey.DESCRIBE_ACLS, **every | changes)
    talk.ask("delete none", ApiKey.DELETE_ACLS, filters=[])
    for label, changes in filters[::-1]:
        talk.ask(f"delete {label}", ApiKey.DELETE_ACLS, filters=[every | changes])
    talk.ask("delete again", ApiKey.DELETE_ACLS, filters=[every])
    talk.ask("delete one wrong", ApiKey.DELETE_ACLS, filters=[every, every | {"operation": 99}])


def scram(talk: Conversation) -> None:
    """Create, describe and delete SCRAM credentials."""
    key, user = ApiKey.ALTER_USER_SCRAM_CREDENTIALS, talk.named("u")

    def alter(label: str, *upsertions: dict[str, Any], deletions: Any = ()) -> None:
        ordinary = {
            "name": user,
            "mechanism": 1,
            "iterations": 4096,
            "salt": b"s" * 16,
            "salted_password": b"p" * 32,
        }
        items = [ordinary | one for one in upsertions]
        gone = [{"name": name, "mechanism": mechanism} for name, mechanism in deletions]
        talk.ask(label, key, upsertions=items, deletions=gone)

    def describe(label: str, *users: str) -> None:
        items = [{"name": name} for name in users]
        talk.ask(label, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, users=items)

    alter("none")
    describe("unknown", user)
    describe("empty", "")
    describe("twice", user, user)
    alter("delete unknown", deletions=[(user, 1)])
    alter("one", {})
    alter("both mechanisms", {}, {"mechanism": 2, "salted_password": b"p" * 64})
    talk.settle()
    describe("both", user)
    describe("known and unknown", user, "nobody")
    describe("known twice", user, user)
    for mechanism in (0, 3, -1):
        alter(f"mechanism {mechanism}", {"mechanism": mechanism})
        alter(f"delete mechanism {mechanism}", deletions=[(user, mechanism)])
    for iterations in (0, -1, 4095, 16_384, 16_385):
        alter(f"iterations {iterations}", {"iterations": iterations})
    alter("empty name", {"name": ""})
    alter("delete empty name", deletions=[("", 1)])
    alter("empty salt", {"salt": b""})
    alter("empty password", {"salted_password": b""})
    alter("short password", {"salted_password": b"p"})
    alter("twice", {}, {})
    alter("made and deleted", {}, deletions=[(user, 1)])
    alter("one right, one wrong", {"name": talk.named("v")}, {"iterations": 1})
    alter("one user right and wrong", {}, {"mechanism": 2, "iterations": 1})
    alter("deleted", deletions=[(user, 1)])
    alter("deleted again", deletions=[(user, 1)])
    talk.settle()
    describe("one is left", user)


def quotas(talk: Conversation) -> None:
    """Set, describe and remove quotas."""
    user = talk.named("u")

    def alter(
        label: str,
        entity: list[tuple[str, str | None]],
        *ops: tuple[str, float, bool],
        validate_only: bool = False,
    ) -> None:
        parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
        items = [{"key": key, "value": value, "remove": remove} for key, value, remove in ops]
        entries = [{"entity": parts, "ops": items}]
        talk.ask(
            f"alter {label}",
            ApiKey.ALTER_CLIENT_QUOTAS,
            entries=entries,
            validate_only=validate_only,
        )

    mine: list[tuple[str, str | None]] = [("user", user)]
    rate = ("producer_byte_rate", 1000.0, False)
    alter("one", mine, rate)
    alter("validated", mine, ("consumer_byte_rate", 5.0, False), validate_only=True)
    alter("user and client", [*mine, ("client-id", "c")], rate)
    alter("default client", [*mine, ("client-id", None)], rate)
    alter("no ops", mine)
    alter("no entity", [], rate)
    alter("unknown kind", [("nonsense", "x")], rate)
    alter("empty user", [("user", "")], rate)
    alter("user twice", [*mine, *mine], rate)
    alter(
        "ip", [("ip", "127.0.0.1")], ("connection_creation_rate", 1000.0, False), validate_only=True
    )
    alter("no ip", [("ip", "x y")], ("connection_creation_rate", 1.0, False), validate_only=True)
    alter(
        "host", [("ip", "localhost")], ("connection_creation_rate", 1.0, False), validate_only=True
    )
    alter("ip and user", [("ip", "127.0.0.1"), *mine], rate, validate_only=True)
    alter("ip, other key", [("ip", "127.0.0.1")], rate, validate_only=True)
    for key, value in (
        ("nonsense", 1.0),
        ("", 1.0),
        ("connection_creation_rate", 5.0),
        ("producer_byte_rate", 0.0),
        ("producer_byte_rate", -1.0),
        ("producer_byte_rate", 0.5),
        ("producer_byte_rate", 1e30),
        ("producer_byte_rate", float("inf")),
        ("producer_byte_rate", float("nan")),
        ("request_percentage", 0.5),
        ("controller_mutation_rate", 0.5),
    ):
        alter(f"{key}={value}", mine, (key, value, False), validate_only=True)
    alter("remove missing", mine, ("consumer_byte_rate", 0.0, True))
    alter("remove nonsense", mine, ("nonsense", 0.0, True))
    alter("twice", mine, rate, rate)
    talk.ask("alter none", ApiKey.ALTER_CLIENT_QUOTAS, entries=[])

    def describe(label: str, *parts: tuple[str, int, str | None], strict: bool = False) -> None:
        components = [
            {"entity_type": kind, "match_type": how, "match": name} for kind, how, name in parts
        ]
        talk.ask(
            f"describe {label}", ApiKey.DESCRIBE_CLIENT_QUOTAS, components=components, strict=strict
        )

    talk.settle()
    describe("user", ("user", 0, user))
    describe("strictly", ("user", 0, user), strict=True)
    describe("user and any client", ("user", 0, user), ("client-id", 2, None))
    describe("default client", ("user", 0, user), ("client-id", 1, None))
    describe("other user", ("user", 0, "nobody"))
    describe("unknown kind", ("nonsense", 0, "x"))
    describe("empty kind", ("", 0, "x"))
    describe("match 3", ("user", 3, user))
    describe("match -1", ("user", -1, user))
    describe("exactly nothing", ("user", 0, None))
    describe("twice", ("user", 0, user), ("user", 0, user))
    describe("ip and user", ("ip", 2, None), ("user", 0, user))
    alter("remove", mine, ("producer_byte_rate", 0.0, True))
    alter("remove with client", [*mine, ("client-id", "c")], ("producer_byte_rate", 0.0, True))
    alter("remove default client", [*mine, ("client-id", None)], ("producer_byte_rate", 0.0, True))
    talk.settle()
    describe("removed", ("user", 0, user))


def logins(talk: Conversation) -> None:
    """Send login requests to a listener without logins."""
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "", "NONSENSE"):
        talk.ask(f"handshake {mechanism}", ApiKey.SASL_HANDSHAKE, mechanism=mechanism)
    talk.ask("authenticate", ApiKey.SASL_AUTHENTICATE, auth_bytes=b"\0a\0b")


TALKS = (acls, scram, quotas, logins)
