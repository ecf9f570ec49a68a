"""Requests of administrators that are invalid in themselves are refused as a whole, with an error that says why."""

from __future__ import annotations

from typing import Any

import pytest

from odradek_broker.access.authorizer import AclAuthorizer
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeClusterRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    UpdateFeaturesRequest,
)
from tests.unit.kafka.fake_broker import answered, services

TOPIC, SET, DELETE, APPEND = 2, 0, 1, 2
INVALID = ErrorCode.INVALID_REQUEST


def alteration(*resources: tuple[str, list[tuple[int, str | None]]]) -> Any:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig
    return IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=TOPIC,
                resource_name=name,
                configs=[
                    config(name="retention.ms", config_operation=operation, value=value)
                    for operation, value in changes
                ],
            )
            for name, changes in resources
        ],
        validate_only=False,
    )


@pytest.mark.parametrize(
    ("resources", "codes"),
    [
        ([("orders", [(SET, "5")])], [ErrorCode.NONE]),
        ([("orders", [(DELETE, None)])], [ErrorCode.NONE]),
        ([("orders", [(SET, None)])], [INVALID]),
        ([("orders", [(APPEND, None)])], [INVALID]),
        (
            [("orders", [(SET, "5")]), ("payments", [(SET, "5")]), ("orders", [(SET, "6")])],
            [INVALID, ErrorCode.NONE, INVALID],
        ),
    ],
)
async def test_a_resource_that_is_named_twice_or_has_no_value_is_not_altered(
    resources: list[tuple[str, list[tuple[int, str | None]]]], codes: list[ErrorCode]
) -> None:
    """Of two mentions the first would win, and the caller could not know which one that was."""
    message = alteration(*resources)
    response = await answered(services(), ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, message)
    assert [one.error_code for one in response.responses] == codes


async def test_a_null_value_does_not_silently_remove_a_config() -> None:
    resource = AlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig(name="retention.ms", value=None)
    one = resource(resource_type=TOPIC, resource_name="orders", configs=[config])
    message = AlterConfigsRequest(resources=[one], validate_only=False)
    response = await answered(services(), ApiKey.ALTER_CONFIGS, 2, message)
    assert [each.error_code for each in response.responses] == [INVALID]


@pytest.mark.parametrize(
    ("level", "upgrade_type", "code"),
    [
        (1, 1, ErrorCode.NONE),
        (0, 1, ErrorCode.INVALID_UPDATE_VERSION),
        (0, 2, ErrorCode.NONE),
        (0, 3, ErrorCode.NONE),
        (1, 0, ErrorCode.INVALID_UPDATE_VERSION),
        (1, 4, ErrorCode.INVALID_UPDATE_VERSION),
        (9, 1, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
async def test_a_dry_run_refuses_the_updates_of_features_that_would_be_refused(
    level: int, upgrade_type: int, code: ErrorCode
) -> None:
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="group.version", max_version_level=level, upgrade_type=upgrade_type
    )
    message = UpdateFeaturesRequest(feature_updates=[update], validate_only=True)
    response = await answered(services(), ApiKey.UPDATE_FEATURES, 2, message)
    assert response.error_code == code


@pytest.mark.parametrize(
    "field", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"]
)
async def test_a_deletion_of_acls_by_an_unknown_value_is_refused(field: str) -> None:
    """It would seem to have deleted all entries that match, of which there are none. A description finds none."""
    fields: dict[str, Any] = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    filter_ = DeleteAclsRequest.DeleteAclsFilter(**fields | {field: 99})
    served = services(AclAuthorizer({"User:alice"}))
    message = DeleteAclsRequest(filters=[filter_])
    response = await answered(served, ApiKey.DELETE_ACLS, 3, message)
    assert [one.error_code for one in response.filter_results] == [INVALID]
    description = DescribeAclsRequest(**fields | {field: 99})
    described = await answered(served, ApiKey.DESCRIBE_ACLS, 3, description)
    assert (described.error_code, described.resources) == (ErrorCode.NONE, [])


async def test_refused_elections_and_moves_name_their_partitions() -> None:
    """ElectLeaders 0 has no error for the request: without them its client would find no result at all."""
    served = services(AclAuthorizer())
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    topic = ElectLeadersRequest.TopicPartitions(topic="orders", partitions=[0, 1])
    election = ElectLeadersRequest(topic_partitions=[topic], timeout_ms=1000)
    elected = await answered(served, ApiKey.ELECT_LEADERS, 0, election)
    (result,) = elected.replica_election_results
    assert [one.error_code for one in result.partition_result] == [denied, denied]
    moved = AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = moved.ReassignablePartition(partition_index=1, replicas=[1])
    move = AlterPartitionReassignmentsRequest(
        topics=[moved(name="orders", partitions=[partition])], timeout_ms=1000
    )
    altered = await answered(served, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, move)
    assert altered.error_code == denied
    assert [one.error_code for one in altered.responses[0].partitions] == [denied]


async def test_whoever_may_not_describe_the_cluster_has_no_operations_on_it() -> None:
    served = services(AclAuthorizer())
    message = DescribeClusterRequest(include_cluster_authorized_operations=True, endpoint_type=1)
    response = await answered(served, ApiKey.DESCRIBE_CLUSTER, 1, message)
    assert response.authorized_operations == set()
