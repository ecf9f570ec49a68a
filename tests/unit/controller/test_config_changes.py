"""Configs of topics and brokers: which changes the controller accepts, and which it refuses and why."""

from __future__ import annotations

from typing import Any

import pytest

from odradek_metadata_quorum.controller import configs
from odradek_metadata_quorum.controller.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterOperation,
    ConfigOperation,
)
from odradek_metadata_quorum.controller.requests import ControllerSettings
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import ConfigResourceType
from tests.unit.controller.cluster import CLUSTER_ID, Cluster, cluster_with_topic

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


def alter(
    found: Cluster,
    *operations: ConfigOperation,
    resource_type: ConfigResourceType = TOPIC,
    name: str = "t",
    **more: Any,
) -> Any:
    resource = AlterConfigsResource(
        resource_type=resource_type, resource_name=name, operations=operations, **more
    )
    request = AlterConfigsRequest(resources=(resource,))
    (outcome,) = found.decide(configs.alter_configs, request)
    return outcome


def operation(name: str, value: str | None, how: AlterOperation = AlterOperation.SET) -> Any:
    return ConfigOperation(name=name, operation=how, value=value)


def test_configs_are_set_deleted_appended_and_subtracted() -> None:
    found = cluster_with_topic()
    assert alter(found, operation("retention.ms", "5"), operation("segment.ms", "7")).is_good
    assert found.image.config_of(TOPIC, "t") == {"retention.ms": "5", "segment.ms": "7"}
    assert alter(found, operation("retention.ms", None, AlterOperation.DELETE)).is_good
    assert alter(found, operation("cleanup.policy", "compact", AlterOperation.APPEND)).is_good
    assert found.image.config_of(TOPIC, "t")["cleanup.policy"] == "delete,compact"
    assert alter(found, operation("cleanup.policy", "delete", AlterOperation.SUBTRACT)).is_good
    assert found.image.config_of(TOPIC, "t") == {"segment.ms": "7", "cleanup.policy": "compact"}
    assert alter(found, operation("flush.ms", "9"), replaces_all=True).is_good
    assert found.image.config_of(TOPIC, "t") == {"flush.ms": "9"}


def test_a_topic_may_be_kept_for_ever_by_an_empty_cleanup_policy() -> None:
    found = cluster_with_topic()
    assert alter(found, operation("cleanup.policy", "delete", AlterOperation.SUBTRACT)).is_good
    assert found.image.config_of(TOPIC, "t") == {"cleanup.policy": ""}
    assert alter(found, operation("cleanup.policy", "compact", AlterOperation.APPEND)).is_good
    assert found.image.config_of(TOPIC, "t") == {"cleanup.policy": "compact"}
    assert alter(found, operation("cleanup.policy", "")).is_good
    assert found.image.config_of(TOPIC, "t") == {"cleanup.policy": ""}


def test_one_bad_value_keeps_the_others_of_the_resource_back() -> None:
    found = cluster_with_topic()
    outcome = alter(found, operation("retention.ms", "5"), operation("segment.ms", "x"))
    assert outcome.error is ErrorCode.INVALID_CONFIG
    assert "segment.ms: 'x' is not a whole number from 1" in outcome.message
    assert found.image.config_of(TOPIC, "t") == {}


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            {"operations": (operation("retenton.ms", "5"),)},
            ErrorCode.INVALID_CONFIG,
            "did you mean retention.ms?",
        ),
        (
            {"operations": (operation("retention.ms", None),)},
            ErrorCode.INVALID_CONFIG,
            "has no value",
        ),
        (
            {"operations": (operation("retention.ms", "5", AlterOperation.APPEND),)},
            ErrorCode.INVALID_CONFIG,
            "is not a list",
        ),
        (
            {"operations": (operation("flush.ms", "1"), operation("flush.ms", "2"))},
            ErrorCode.INVALID_REQUEST,
            "twice",
        ),
        ({"name": "x"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic x"),
        ({"resource_type": BROKER, "name": "9"}, ErrorCode.INVALID_REQUEST, "no broker 9"),
        ({"resource_type": BROKER, "name": "01"}, ErrorCode.INVALID_REQUEST, "no broker 01"),
        ({"resource_type": BROKER, "name": "9" * 5000}, ErrorCode.INVALID_REQUEST, "no broker 9"),
        ({"resource_type": BROKER, "name": "b"}, ErrorCode.INVALID_REQUEST, "is not a broker id"),
        (
            {
                "resource_type": BROKER,
                "name": "1",
                "operations": (operation("num.partitions", "5"),),
            },
            ErrorCode.INVALID_CONFIG,
            "has one value for all brokers",
        ),
        (
            {"resource_type": ConfigResourceType.GROUP},
            ErrorCode.INVALID_CONFIG,
            "there is no group config retention.ms",
        ),
    ],
)
def test_config_changes_that_are_refused(
    change: dict[str, Any], error: ErrorCode, said: str
) -> None:
    found = cluster_with_topic()
    operations = change.pop("operations", (operation("retention.ms", "5"),))
    outcome = alter(found, *operations, **change)
    assert outcome.error is error
    assert said in outcome.message


def test_a_resource_is_changed_once_in_a_request() -> None:
    found = cluster_with_topic()
    one, other = (
        AlterConfigsResource(
            resource_type=TOPIC, resource_name="t", operations=(operation("segment.ms", value),)
        )
        for value in ("100", "200")
    )
    outcomes = found.decide(configs.alter_configs, AlterConfigsRequest(resources=(one, other)))
    assert [outcome.error for outcome in outcomes] == [ErrorCode.INVALID_REQUEST] * 2
    assert found.image.config_of(TOPIC, "t") == {}


def test_a_single_brokers_limit_is_its_own() -> None:
    found = cluster_with_topic()
    limit = operation("max.connections", "50")
    assert alter(found, limit, resource_type=BROKER, name="1").is_good
    assert found.image.config_of(BROKER, "1") == {"max.connections": "50"}


def test_a_change_to_what_is_already_there_writes_nothing() -> None:
    found = cluster_with_topic()
    alter(found, operation("retention.ms", "5"))
    entries = len(found.log)
    assert alter(found, operation("retention.ms", "5")).is_good
    assert len(found.log) == entries


def test_the_clusters_minimum_settles_all_partitions_that_follow_it() -> None:
    found = cluster_with_topic()
    found.set_config("min.insync.replicas", "2")
    found.create("own", assignments=((1, 2, 3),), min_insync_replicas="2")
    found.kill(2, 1, 3)
    found.kill(3, 1)
    assert found.state().elr == found.state(name="own").elr == (3,)
    entries = len(found.log)
    found.set_config("min.insync.replicas", "1")
    assert len(found.log) == entries + 1, "one batch"
    assert found.state().elr == ()
    assert found.state(name="own").elr == (3,)


def test_a_minimum_that_concerns_too_many_partitions_is_lowered_piece_by_piece() -> None:
    """The ELRs that the new minimum voids go first, because a leader alone may acknowledge then."""
    found = Cluster(settings=ControllerSettings(cluster_id=CLUSTER_ID, registration_changes_max=40))
    found.start(1, 2, 3)
    found.set_config("min.insync.replicas", "2")
    found.create(partitions=100, replicas=3)
    found.kill(2, 1, 3)
    found.kill(3, 1)
    lowered = operation("min.insync.replicas", "1")
    with_elr = []
    for error in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE):
        with_elr.append(sum(bool(state.elr) for state in found.image.partitions()))
        assert found.image.topic_config("t", "min.insync.replicas") == "2"
        assert alter(found, lowered, resource_type=BROKER, name="").error is error
        found.image.check()
    assert with_elr == [100, 60, 20]
    assert not any(state.elr for state in found.image.partitions())
    assert found.image.topic_config("t", "min.insync.replicas") == "1"


@pytest.mark.parametrize(
    ("name", "value", "is_good"),
    [
        ("compression.zstd.level", "5", True),
        ("leader.replication.throttled.replicas", "0:1,1:2", True),
        ("message.format.version", "2.8-IV1", True),
        ("local.retention.ms", "-2", True),
        ("local.retention.ms", "soon", False),
        ("remote.storage.enable", "false", True),
        ("remote.storage.enable", "true", False),
    ],
)
def test_configs_that_tools_copy_are_taken_unless_they_ask_for_what_is_missing(
    name: str, value: str, is_good: bool
) -> None:
    found = cluster_with_topic()
    outcome = alter(found, operation(name, value))
    assert outcome.is_good == is_good, outcome
    assert (name in found.image.config_of(TOPIC, "t")) == is_good
    if not is_good:
        assert outcome.error is ErrorCode.INVALID_CONFIG
        assert name in outcome.message


HEARTBEAT, SESSION = "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"


def alter_group(found: Cluster, *operations: ConfigOperation, name: str = "g") -> Any:
    return alter(found, *operations, resource_type=ConfigResourceType.GROUP, name=name)


def test_a_group_has_configs_of_its_own() -> None:
    found = cluster_with_topic()
    assert alter_group(found, operation(SESSION, "20000"), operation(HEARTBEAT, "5000")).is_good
    assert found.image.config_of(ConfigResourceType.GROUP, "g")[SESSION] == "20000"
    assert found.image.config_of(ConfigResourceType.GROUP, "other") == {}
    assert alter_group(found, operation(SESSION, None, AlterOperation.DELETE)).is_good
    assert found.image.config_of(ConfigResourceType.GROUP, "g") == {HEARTBEAT: "5000"}


@pytest.mark.parametrize(
    ("operations", "name", "reason"),
    [
        ([operation(SESSION, "10")], "g", SESSION),
        ([operation("consumer.sesion.timeout.ms", "20000")], "g", "did you mean"),
        ([operation(SESSION, "10000"), operation(HEARTBEAT, "10000")], "g", "must be below"),
        ([operation(SESSION, "20000")], "", "name of the group"),
    ],
)
def test_configs_of_a_group_that_cannot_work_are_refused(
    operations: list[ConfigOperation], name: str, reason: str
) -> None:
    found = cluster_with_topic()
    outcome = alter_group(found, *operations, name=name)
    assert not outcome.is_good
    assert reason in outcome.message
    assert not found.image.config_of(ConfigResourceType.GROUP, name)


def test_groups_with_configs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "GROUPS_WITH_CONFIGS_MAX", 2)
    found = cluster_with_topic()
    for name in ("a", "b"):
        assert alter_group(found, operation(SESSION, "20000"), name=name).is_good
    refused = alter_group(found, operation(SESSION, "20000"), name="c")
    assert refused.error is ErrorCode.POLICY_VIOLATION
    assert alter_group(found, operation(SESSION, "30000"), name="a").is_good
    assert alter_group(found, operation(SESSION, None, AlterOperation.DELETE), name="a").is_good
    assert alter_group(found, operation(SESSION, "20000"), name="c").is_good
