"""Requests that the controller refuses as invalid: clients must not repeat them as if it had not responded."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import ConfigResourceType
from tests.unit.kafka.fake_broker import FakeControllers, answered, services


class Failing(FakeControllers):
    """A controller, every call of which fails with this status."""

    def __init__(self, status: grpc.StatusCode) -> None:
        super().__init__()
        self.status = status

    async def call(self, *_: Any, **__: Any) -> Any:
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(self.status, nothing, nothing, details="no such election type")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, ErrorCode.INVALID_REQUEST),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ErrorCode.REQUEST_TIMED_OUT),
    ],
)
async def test_only_what_may_succeed_later_is_a_timeout(
    status: grpc.StatusCode, code: ErrorCode
) -> None:
    served = services()
    served.controllers = Failing(status)
    message = messages.ElectLeadersRequest(election_type=7, topic_partitions=None, timeout_ms=100)
    response = await answered(served, ApiKey.ELECT_LEADERS, 2, message)
    assert response.error_code == code


async def test_an_unknown_operation_on_a_config_refuses_its_resource_only() -> None:
    served = services()
    resource_of = messages.IncrementalAlterConfigsRequest.AlterConfigsResource
    message = messages.IncrementalAlterConfigsRequest(
        resources=[
            resource_of(
                resource_type=ConfigResourceType.TOPIC,
                resource_name=topic,
                configs=[
                    resource_of.AlterableConfig(
                        name="retention.ms", config_operation=operation, value="1"
                    )
                ],
            )
            for topic, operation in (("orders", 0), ("payments", 4))
        ],
        validate_only=False,
    )
    response = await answered(served, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, message)
    assert [one.error_code for one in response.responses] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
