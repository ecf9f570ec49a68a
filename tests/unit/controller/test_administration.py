"""Configs, access, users, quotas, features, producer ids: what is taken, what is refused and why."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from odradek_metadata_quorum.controller.administration import access
from odradek_metadata_quorum.controller.administration.access import AclEntry, find_acls
from odradek_metadata_quorum.controller.administration.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterOperation,
    ConfigOperation,
)
from odradek_metadata_quorum.controller.administration.credentials import (
    ScramDeletion,
    ScramUpsertion,
)
from odradek_metadata_quorum.controller.administration.quotas import QuotaAlteration
from odradek_metadata_quorum.controller.recovery import CHECK_INTERVAL_MS
from odradek_metadata_quorum.controller.requests import (
    AllocateProducerIdsRequest,
    ElectLeadersRequest,
    LogEnd,
    ReportLogEndsRequest,
)
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    PartitionIndex,
    TopicIdPartition,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import definitions
from odradek_protocol.metadata.records import (
    NO_LEADER,
    ConfigResourceType,
    RestartClass,
    ScramMechanism,
)
from tests.unit.controller.cluster import Cluster

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


def cluster() -> Cluster:
    found = Cluster()
    found.start(1, 2, 3)
    found.create(assignments=((1, 2, 3),))
    return found


@contextmanager
def no_longer_than_a_lease() -> Iterator[None]:
    """What takes longer keeps heartbeats unanswered until the brokers stop serving."""
    began_s = time.process_time()
    yield
    assert time.process_time() - began_s < 2.0


# --- configs


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
    (outcome,) = found.commit(found.controller.handle_alter_configs(request))
    return outcome


def operation(name: str, value: str | None, how: AlterOperation = AlterOperation.SET) -> Any:
    return ConfigOperation(name=name, operation=how, value=value)


def test_configs_are_set_deleted_appended_and_subtracted() -> None:
    found = cluster()
    assert alter(found, operation("retention.ms", "5"), operation("segment.ms", "7")).is_good
    assert found.image.config_of(TOPIC, "t") == {"retention.ms": "5", "segment.ms": "7"}
    assert alter(found, operation("retention.ms", None, AlterOperation.DELETE)).is_good
    assert alter(found, operation("cleanup.policy", "compact", AlterOperation.APPEND)).is_good
    assert found.image.config_of(TOPIC, "t")["cleanup.policy"] == "delete,compact"
    assert alter(found, operation("cleanup.policy", "delete", AlterOperation.SUBTRACT)).is_good
    assert found.image.config_of(TOPIC, "t") == {"segment.ms": "7", "cleanup.policy": "compact"}
    assert alter(found, operation("flush.ms", "9"), replaces_all=True).is_good
    assert found.image.config_of(TOPIC, "t") == {"flush.ms": "9"}


def test_one_bad_value_keeps_the_others_of_the_resource_back() -> None:
    found = cluster()
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
            "a value is missing",
        ),
        (
            {"operations": (operation("retention.ms", "5", AlterOperation.APPEND),)},
            ErrorCode.INVALID_CONFIG,
            "is no list",
        ),
        (
            {"operations": (operation("cleanup.policy", "delete", AlterOperation.SUBTRACT),)},
            ErrorCode.INVALID_CONFIG,
            "empty list",
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
        ({"resource_type": BROKER, "name": "b"}, ErrorCode.INVALID_REQUEST, "is no broker"),
        (
            {
                "resource_type": BROKER,
                "name": "1",
                "operations": (operation("num.partitions", "5"),),
            },
            ErrorCode.INVALID_CONFIG,
            "the same for all brokers",
        ),
        ({"resource_type": ConfigResourceType.GROUP}, ErrorCode.INVALID_REQUEST, "no configs"),
    ],
)
def test_config_changes_that_are_refused(
    change: dict[str, Any], error: ErrorCode, said: str
) -> None:
    found = cluster()
    operations = change.pop("operations", (operation("retention.ms", "5"),))
    outcome = alter(found, *operations, **change)
    assert outcome.error is error
    assert said in outcome.message


def test_a_resource_is_changed_once_in_a_request() -> None:
    found = cluster()
    one, other = (
        AlterConfigsResource(
            resource_type=TOPIC, resource_name="t", operations=(operation("segment.ms", value),)
        )
        for value in ("100", "200")
    )
    outcomes = found.commit(
        found.controller.handle_alter_configs(AlterConfigsRequest(resources=(one, other)))
    )
    assert [outcome.error for outcome in outcomes] == [ErrorCode.INVALID_REQUEST] * 2
    assert found.image.config_of(TOPIC, "t") == {}


def test_a_single_brokers_limit_is_its_own() -> None:
    found = cluster()
    limit = operation("max.connections", "50")
    assert alter(found, limit, resource_type=BROKER, name="1").is_good
    assert found.image.config_of(BROKER, "1") == {"max.connections": "50"}


def test_a_change_to_what_is_already_there_writes_nothing() -> None:
    found = cluster()
    alter(found, operation("retention.ms", "5"))
    entries = len(found.log)
    assert alter(found, operation("retention.ms", "5")).is_good
    assert len(found.log) == entries


def test_the_clusters_minimum_settles_all_partitions_that_follow_it() -> None:
    found = cluster()
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


# --- elections by command, and the balance


def test_preferred_leaders_are_elected_by_command() -> None:
    found = cluster()
    found.kill(1, 2, 3)
    found.register(1, RestartClass.PROCESS)
    found.beat(1)

    def elect(**request: Any) -> dict[str, ErrorCode]:
        results = found.commit(
            found.controller.handle_elect_leaders(ElectLeadersRequest(**request))
        )
        return {str(result.partition): result.outcome.error for result in results}

    named = (
        TopicPartition(TopicName("t"), PartitionIndex(0)),
        TopicPartition(TopicName("x"), PartitionIndex(0)),
    )
    assert elect(partitions=named) == {
        "t-0": ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        "x-0": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    found.alter_partition((1, 2, 3))
    before = found.state().leader_epoch
    assert elect() == {"t-0": ErrorCode.NONE}
    assert (found.state().leader, found.state().leader_epoch) == (1, before + 1)
    assert elect() == {}, "nothing to do, nothing to tell"
    assert elect(partitions=named[:1]) == {"t-0": ErrorCode.ELECTION_NOT_NEEDED}


def test_an_unclean_election_by_command_takes_a_live_replica() -> None:
    found = Cluster()
    found.start(1, 2)
    found.create(assignments=((1, 2),))
    found.kill(2, 1)
    found.kill(1)
    found.register(2, RestartClass.PROCESS)
    found.beat(2)
    request = ElectLeadersRequest(unclean=True)
    (result,) = found.commit(found.controller.handle_elect_leaders(request))
    assert result.outcome.is_good
    state = found.state()
    assert (state.leader, state.isr, state.recovering) == (2, (2,), True)
    assert found.commit(found.controller.handle_elect_leaders(request)) == ()


def test_an_unclean_election_by_command_counts_no_log_end_of_an_earlier_life() -> None:
    found = cluster()
    found.set_config("unclean.leader.election.enable", "true", topic="t")
    found.alter_partition((1,))
    found.kill(1, 2, 3)
    wait_ms = int(definitions(BROKER)["unclean.recovery.wait.ms"].default)
    found.pass_ms(wait_ms + CHECK_INTERVAL_MS, 2, 3, step_ms=CHECK_INTERVAL_MS)
    state = found.state()
    assert state.leader == NO_LEADER
    partition = TopicIdPartition(state.topic_id, state.partition)

    def tell(broker_id: int, log_end: int) -> None:
        assert partition in found.heartbeat(broker_id).report_log_ends
        told = (LogEnd(partition=partition, last_epoch=0, log_end=log_end),)
        found.commit(
            found.controller.handle_report_log_ends(
                ReportLogEndsRequest(
                    broker_id=BrokerId(broker_id),
                    broker_epoch=found.epochs[broker_id],
                    partitions=told,
                )
            )
        )

    tell(2, 100)
    found.register(2, RestartClass.POWER)  # and what it told may be gone
    found.beat(2)
    tell(3, 50)
    request = ElectLeadersRequest(
        unclean=True, partitions=(TopicPartition(TopicName("t"), PartitionIndex(0)),)
    )
    (result,) = found.commit(found.controller.handle_elect_leaders(request))
    assert result.outcome.is_good
    assert found.state().leader == 3


def test_leaderships_go_back_by_themselves_when_too_many_are_elsewhere() -> None:
    found = Cluster()
    found.start(1, 2, 3)
    found.create("b", partitions=30, replicas=3)
    found.kill(1, 2, 3)
    found.register(1, RestartClass.PROCESS)
    found.beat(1)
    for state in list(found.image.partitions()):
        found.alter_partition((1, 2, 3), index=state.partition, topic="b")
    assert all(state.leader != 1 for state in found.image.partitions())
    found.pass_ms(298_000, 1, 2, 3, step_ms=1000)
    assert all(state.leader != 1 for state in found.image.partitions())
    found.pass_ms(3_000, 1, 2, 3, step_ms=1000)
    assert all(state.leader == state.replicas[0] for state in found.image.partitions())


def test_the_balance_can_be_switched_off() -> None:
    found = cluster()
    found.set_config("auto.leader.rebalance.enable", "false")
    found.kill(1, 2, 3)
    found.register(1, RestartClass.PROCESS)
    found.beat(1)
    found.alter_partition((1, 2, 3))
    found.pass_ms(700_000, 1, 2, 3, step_ms=1000)
    assert found.state().leader == 2


# --- access control


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
    found = cluster()
    entries = (acl(), acl(principal="User:bob"), acl())
    outcomes = found.commit(found.controller.handle_create_acls(entries))
    assert all(outcome.is_good for outcome in outcomes)
    assert set(find_acls(found.image, ANYTHING)) == set(entries)
    assert len(found.image.acls) == 2
    results = found.commit(
        found.controller.handle_delete_acls((acl(principal="User:bob"), ANYTHING))
    )
    assert [gone for _, gone in results] == [(acl(principal="User:bob"),), (acl(),)]
    assert not found.image.acls


def test_many_entries_are_deleted_by_their_names_without_a_look_at_all_of_them() -> None:
    found = cluster()
    entries = tuple(acl(resource_name=f"topic-{number}") for number in range(5_000))
    found.commit(found.controller.handle_create_acls(entries))
    with no_longer_than_a_lease():
        results = found.commit(found.controller.handle_delete_acls(entries))
    assert [gone for _, gone in results] == [(entry,) for entry in entries]
    assert not found.image.acls


def test_filters_that_look_at_all_entries_are_so_many_in_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "LOOKS_MAX", 5)
    found = cluster()
    found.commit(found.controller.handle_create_acls((acl(), acl(principal="User:bob"))))
    bobs = AclEntry(
        resource_type=1,
        resource_name="",
        pattern_type=1,
        principal="User:bob",
        host="",
        operation=1,
        permission_type=1,
    )
    nobodys = acl(resource_name="", principal="User:nobody")
    results = found.commit(
        found.controller.handle_delete_acls((nobodys, nobodys, bobs, acl(), ANYTHING))
    )
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
    found = cluster()
    found.commit(found.controller.handle_create_acls((acl(**stored),)))
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
    found = cluster()
    (outcome,) = found.commit(found.controller.handle_create_acls((acl(**wrong),)))
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
    found = cluster()
    ((user, outcome),) = found.commit(found.controller.handle_alter_scram_users((upsertion(),), ()))
    assert (user, outcome.is_good) == ("alice", True)
    credential = found.image.scram["alice", ScramMechanism.SHA_256]
    client_key = hmac.digest(upsertion().salted_password, b"Client Key", "sha256")
    assert credential.stored_key == hashlib.sha256(client_key).digest()
    assert client_key not in (credential.stored_key, credential.server_key)
    deletion = ScramDeletion(user="alice", mechanism=1)
    assert found.commit(found.controller.handle_alter_scram_users((), (deletion,)))[0][1].is_good
    assert not found.image.scram
    ((_, again),) = found.commit(found.controller.handle_alter_scram_users((), (deletion,)))
    assert again.error is ErrorCode.RESOURCE_NOT_FOUND


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"mechanism": 0}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 1_000_000}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b"s"}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salted_password": b"short"}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"user": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_weak_credentials_are_refused(wrong: dict[str, Any], error: ErrorCode) -> None:
    found = cluster()
    ((_, outcome),) = found.commit(
        found.controller.handle_alter_scram_users((upsertion(**wrong),), ())
    )
    assert outcome.error is error
    assert not found.image.scram


def test_thousands_of_users_at_once_do_not_stop_the_controller() -> None:
    found = cluster()
    given = tuple(upsertion(user=f"user-{number}") for number in range(6_000))
    with no_longer_than_a_lease():
        outcomes = found.commit(found.controller.handle_alter_scram_users((*given, given[0]), ()))
    assert sum(outcome.is_good for _, outcome in outcomes) == len(given) - 1
    assert dict(outcomes)["user-0"].error is ErrorCode.DUPLICATE_RESOURCE


def test_a_user_with_one_bad_change_is_not_changed_at_all() -> None:
    found = cluster()
    results = dict(
        found.commit(
            found.controller.handle_alter_scram_users(
                (upsertion(), upsertion(mechanism=2), upsertion(user="bob")), ()
            )
        )
    )
    assert results["alice"].error is ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert results["bob"].is_good
    assert [user for user, _ in found.image.scram] == ["bob"]


# --- quotas


def test_quotas_are_set_and_removed() -> None:
    found = cluster()
    entity = (("user", "alice"), ("client-id", None))

    def alter_quota(value: float | None, **more: Any) -> Any:
        alteration = QuotaAlteration(
            **{"entity": entity, "key": "producer_byte_rate", "value": value, **more}
        )
        (outcome,) = found.commit(found.controller.handle_alter_quotas((alteration,)))
        return outcome

    assert alter_quota(1024.0).is_good
    assert found.image.quotas == {tuple(sorted(entity)): {"producer_byte_rate": 1024.0}}
    assert alter_quota(None).is_good
    assert found.image.quotas == {}
    for wrong in (
        {"value": 0.0},
        {"value": float("nan")},
        {"value": 1.0, "key": "beer_rate"},
        {"value": 1.0, "entity": ()},
        {"value": 1.0, "entity": (("user", "a"), ("user", "b"))},
        {"value": 1.0, "entity": (("user", "a"), ("ip", "1"))},
        {"value": 1.0, "entity": (("ip", "1"),)},
    ):
        assert alter_quota(**wrong).error is ErrorCode.INVALID_REQUEST  # type: ignore[arg-type]
    assert found.image.quotas == {}


# --- features and producer ids


def test_a_clusters_first_start_sets_features_and_configs_once() -> None:
    from odradek_metadata_quorum.controller import ControllerSettings

    found = Cluster(
        settings=ControllerSettings(
            cluster_id="test-cluster", initial_configs=(("min.insync.replicas", "2"),)
        )
    )
    assert found.image.features["transaction.version"] == 2
    assert found.image.config_of(BROKER, "") == {"min.insync.replicas": "2"}
    found.set_config("min.insync.replicas", "1")
    found.fail_over()
    assert found.image.config_of(BROKER, "") == {"min.insync.replicas": "1"}


@pytest.mark.parametrize(
    ("name", "level", "downgrade", "good"),
    [
        ("transaction.version", 2, False, True),
        ("transaction.version", 1, False, False),
        ("transaction.version", 1, True, True),
        ("transaction.version", 3, False, False),
        ("metadata.version", 0, True, False),
        ("no.version", 1, False, False),
    ],
)
def test_feature_levels(name: str, level: int, downgrade: bool, good: bool) -> None:
    found = cluster()
    outcome = found.commit(
        found.controller.handle_update_feature(name, level, allow_downgrade=downgrade)
    )
    assert outcome.is_good is good
    assert good or outcome.error is ErrorCode.FEATURE_UPDATE_FAILED
    if good:
        assert found.image.features[name] == level


def test_producer_ids_are_given_out_once_also_across_controllers() -> None:
    found = cluster()
    seen: set[int] = set()
    for turn in range(6):
        broker = turn % 3 + 1
        block = found.commit(
            found.controller.handle_allocate_producer_ids(
                AllocateProducerIdsRequest(
                    broker_id=BrokerId(broker), broker_epoch=found.epochs[broker]
                )
            )
        )
        ids = set(range(block.producer_id_start, block.producer_id_start + block.producer_id_count))
        assert len(ids) == 1000
        assert not ids & seen
        seen |= ids
        if turn == 2:
            found.fail_over()
    stale = AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(0))
    refused = found.commit(found.controller.handle_allocate_producer_ids(stale))
    assert refused.error is ErrorCode.STALE_BROKER_EPOCH
