"""Conversations about configs: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from typing import Any

from odradek_protocol.kafka.api_keys import ApiKey
from tests.e2e.kafka.same_answers.conversation import Conversation

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe_configs(talk: Conversation) -> None:
    """Describe configs of each kind of resource."""
    key = ApiKey.DESCRIBE_CONFIGS
    topic = talk.topic("t", cleanup_policy="compact", retention_ms="1000")

    def describe(label: str, kind: int, name: str, *names: str, **more: Any) -> None:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [*names]}
        response = talk.once(key, talk.version(key), resources=[resource], **more)
        for result in response["results"] if isinstance(response, dict) and not names else ():
            result["configs"] = [one for one in result["configs"] if one["name"] in known]
        talk.record(f"{key.name} {talk.version(key)}: {label}", response)

    known = ("retention.ms", "cleanup.policy", "segment.bytes", "min.insync.replicas")
    describe("known", TOPIC, topic, *known)
    describe("with synonyms", TOPIC, topic, "retention.ms", "segment.ms", include_synonyms=True)
    describe("with documentation", TOPIC, topic, "retention.ms", include_documentation=True)
    describe("unknown name", TOPIC, topic, "nonsense")
    describe("empty name", TOPIC, topic, "")
    describe("no names", TOPIC, topic)
    describe("unknown topic", TOPIC, "nowhere", "retention.ms")
    describe("empty topic", TOPIC, "", "retention.ms")
    describe("bad topic", TOPIC, "a b", "retention.ms")
    describe("broker", BROKER, "1", "broker.id", "node.id")
    describe("cluster", BROKER, "", "nonsense")
    for name in ("99", "-1", "x", "1x", " 1"):
        describe(f"broker {name}", BROKER, name, "nonsense")
    describe("loggers", LOGGER, "1", "nonsense")
    describe("loggers of the cluster", LOGGER, "", "nonsense")
    describe("loggers of another", LOGGER, "99", "nonsense")
    describe("group", GROUP, talk.named("g"), "consumer.session.timeout.ms")
    describe("empty group", GROUP, "", "consumer.session.timeout.ms")
    describe("metrics", CLIENT_METRICS, talk.named("m"), "interval.ms")
    for kind in (0, 1, 3, 5, 64, -1):
        describe(f"kind {kind}", kind, "x", "y")
    talk.ask("no resources", key, resources=[])
    one = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["retention.ms"]}
    talk.ask("twice", key, resources=[one, one])
    talk.ask("known and unknown", key, resources=[one, one | {"resource_name": "nowhere"}])


_VALUES: tuple[tuple[str, str | None], ...] = (
    ("retention.ms", "1000"),
    ("retention.ms", "-2"),
    ("retention.ms", "x"),
    ("retention.ms", ""),
    ("retention.ms", None),
    ("retention.ms", str(1 << 63)),
    ("cleanup.policy", "compact"),
    ("cleanup.policy", "nonsense"),
    ("max.message.bytes", "-1"),
    ("min.insync.replicas", "0"),
    ("nonsense", "1"),
    ("", "1"),
)


def alter_configs(talk: Conversation) -> None:
    """Replace configs as a whole."""
    key, topic = ApiKey.ALTER_CONFIGS, talk.topic("t", retention_ms="1000")

    def alter(
        label: str,
        kind: int,
        name: str,
        *configs: tuple[str, str | None],
        validate_only: bool = True,
    ) -> None:
        items = [{"name": config, "value": value} for config, value in configs]
        resource = {"resource_type": kind, "resource_name": name, "configs": items}
        talk.ask(label, key, resources=[resource], validate_only=validate_only)

    for name, value in _VALUES:
        alter(f"{name}={value}", TOPIC, topic, (name, value))
    alter("twice", TOPIC, topic, ("retention.ms", "1"), ("retention.ms", "2"))
    alter("unknown topic", TOPIC, "nowhere", ("retention.ms", "1"))
    alter("empty topic", TOPIC, "", ("retention.ms", "1"))
    alter("none", TOPIC, topic)
    for kind in (0, 1, 3, 64, -1):
        alter(f"kind {kind}", kind, "x", ("y", "1"))
    alter("another broker", BROKER, "99", ("max.connections", "10000"))
    alter("no broker", BROKER, "x", ("max.connections", "10000"))
    alter("really", TOPIC, topic, ("segment.ms", "60000"), validate_only=False)
    one = {"resource_type": TOPIC, "resource_name": topic, "configs": []}
    talk.ask("resource twice", key, resources=[one, one], validate_only=True)
    talk.ask("no resources", key, resources=[])
    described(talk, topic, "retention.ms", "segment.ms")


def described(talk: Conversation, topic: str, *names: str) -> None:
    resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": [*names]}
    talk.settle()
    talk.ask("described", ApiKey.DESCRIBE_CONFIGS, resources=[resource], include_synonyms=True)


def incremental_alter_configs(talk: Conversation) -> None:
    """Change single configs by each operation."""
    key, topic = ApiKey.INCREMENTAL_ALTER_CONFIGS, talk.topic("t", retention_ms="1000")

    def alter(
        label: str,
        kind: int,
        name: str,
        *configs: tuple[str, int, str | None],
        validate_only: bool = True,
    ) -> None:
        items = [
            {"name": config, "config_operation": operation, "value": value}
            for config, operation, value in configs
        ]
        resource = {"resource_type": kind, "resource_name": name, "configs": items}
        talk.ask(label, key, resources=[resource], validate_only=validate_only)

    for name, value in _VALUES:
        alter(f"{name}={value}", TOPIC, topic, (name, SET, value))
    for operation in (DELETE, APPEND, SUBTRACT, 4, -1):
        alter(f"operation {operation}", TOPIC, topic, ("retention.ms", operation, "5"))
        alter(
            f"operation {operation} of a list",
            TOPIC,
            topic,
            ("cleanup.policy", operation, "compact"),
        )
        alter(
            f"operation {operation} without a value",
            TOPIC,
            topic,
            ("cleanup.policy", operation, None),
        )
        alter(f"operation {operation}, nonsense", TOPIC, topic, ("nonsense", operation, "x"))
    alter("subtracted to nothing", TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete"))
    alter("appended twice", TOPIC, topic, ("cleanup.policy", APPEND, "delete,delete"))
    alter("twice", TOPIC, topic, ("retention.ms", SET, "1"), ("retention.ms", DELETE, None))
    alter("unknown topic", TOPIC, "nowhere", ("retention.ms", SET, "1"))
    alter("empty topic", TOPIC, "", ("retention.ms", SET, "1"))
    alter("bad topic", TOPIC, "a b", ("retention.ms", SET, "1"))
    alter("none", TOPIC, topic)
    for kind in (0, 1, 3, 64, -1):
        alter(f"kind {kind}", kind, "x", ("y", SET, "1"))
    alter("another broker", BROKER, "99", ("max.connections", SET, "10000"))
    alter("no broker", BROKER, "x", ("max.connections", SET, "10000"))
    alter("broker, unknown", BROKER, "1", ("nonsense", SET, "1"))
    alter("cluster, read only", BROKER, "", ("broker.id", SET, "7"))
    group = talk.named("g")
    alter("group", GROUP, group, ("consumer.session.timeout.ms", SET, "50000"))
    alter("group, nonsense", GROUP, group, ("nonsense", SET, "1"))
    alter("group, too low", GROUP, group, ("consumer.session.timeout.ms", SET, "1"))
    alter("empty group", GROUP, "", ("consumer.session.timeout.ms", SET, "50000"))
    alter("logger", LOGGER, "1", ("kafka.nonsense", SET, "INFO"))
    alter("append really", TOPIC, topic, ("cleanup.policy", APPEND, "compact"), validate_only=False)
    alter("delete really", TOPIC, topic, ("retention.ms", DELETE, None), validate_only=False)
    one = {"resource_type": TOPIC, "resource_name": topic, "configs": []}
    change = [{"name": "segment.ms", "config_operation": SET, "value": "60000"}]
    talk.ask("resource twice", key, resources=[one, one], validate_only=True)
    talk.ask(
        "resource twice, changes",
        key,
        resources=[one | {"configs": change}] * 2,
        validate_only=True,
    )
    talk.ask("no resources", key, resources=[])
    beside = [one | {"configs": change}, one | {"resource_name": "nowhere", "configs": change}]
    talk.ask("known and unknown", key, resources=beside)
    described(talk, topic, "retention.ms", "cleanup.policy", "segment.ms")


def list_config_resources(talk: Conversation) -> None:
    """List resources that have configs."""
    key = ApiKey.LIST_CONFIG_RESOURCES
    for kinds in ([BROKER], [LOGGER], [CLIENT_METRICS], [0], [1], [99], [-1], [BROKER, BROKER]):
        talk.ask(f"kinds {kinds}", key, resource_types=kinds)


TALKS = (describe_configs, alter_configs, incremental_alter_configs, list_config_resources)
