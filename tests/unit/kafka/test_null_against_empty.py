"""Null and empty fields of requests, which mean different things: null means everything, empty means nothing."""

from __future__ import annotations

from typing import Any

import pytest

from odradek_broker.access.authorizer import AclAuthorizer
from odradek_protocol.access import Operation, PatternType, Permission, ResourceType
from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.kafka.fake_broker import answered, services

TopicPartitions = messages.ElectLeadersRequest.TopicPartitions


@pytest.mark.parametrize("topics", [[], [TopicPartitions(topic="orders", partitions=[])]])
async def test_an_election_that_names_no_partitions_elects_none(
    topics: list[TopicPartitions],
) -> None:
    served = services()
    controllers: Any = served.controllers
    message = messages.ElectLeadersRequest(election_type=1, topic_partitions=topics, timeout_ms=100)
    response = await answered(served, ApiKey.ELECT_LEADERS, 2, message)
    assert response.error_code == ErrorCode.NONE
    assert not response.replica_election_results
    assert controllers.calls == []
    message.topic_partitions = None
    await answered(served, ApiKey.ELECT_LEADERS, 2, message)
    assert [method for method, _ in controllers.calls] == ["ElectLeaders"]


def acl_filter(**parts: str | None) -> dict[str, Any]:
    """Return the fields of a filter that matches all entries but for these parts."""
    return {
        "resource_type_filter": ResourceType.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": Operation.ANY,
        "permission_type": Permission.ANY,
        **parts,
    }


@pytest.mark.parametrize("part", ["resource_name_filter", "principal_filter", "host_filter"])
async def test_an_empty_text_in_a_filter_matches_no_entry(part: str) -> None:
    served = services(AclAuthorizer(["User:alice"]))
    controllers: Any = served.controllers
    deletion = messages.DeleteAclsRequest.DeleteAclsFilter
    message = messages.DeleteAclsRequest(
        filters=[deletion(**acl_filter(**{part: ""})), deletion(**acl_filter(**{part: "x"}))]
    )
    deleted = await answered(served, ApiKey.DELETE_ACLS, 3, message)
    assert [result.error_code for result in deleted.filter_results] == [ErrorCode.NONE] * 2
    ((_, command),) = controllers.calls
    assert len(command.filters) == 1
    described = await answered(
        served, ApiKey.DESCRIBE_ACLS, 3, messages.DescribeAclsRequest(**acl_filter(**{part: ""}))
    )
    assert (described.error_code, list(described.resources)) == (ErrorCode.NONE, [])
    assert len(controllers.calls) == 1
