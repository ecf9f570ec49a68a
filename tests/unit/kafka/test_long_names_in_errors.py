"""A name may have the maximum length of a string, so an error message that quotes it would be
longer, and is cut.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from odradek_broker.kafka.registry import Registry
from odradek_metadata_quorum.controller.requests import MESSAGE_CHARACTERS_MAX, Outcome
from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.request_decoding import STRING_BYTES_MAX
from odradek_protocol.kafka.response_encoding import encode_message
from tests.unit.kafka.fake_broker import request, services

LONG = "n" * STRING_BYTES_MAX
_CONFIGS = messages.DescribeConfigsRequest.DescribeConfigsResource
_QUOTAS = messages.DescribeClientQuotasRequest.ComponentData


@pytest.mark.parametrize(
    ("key", "version", "message"),
    [
        (
            ApiKey.DESCRIBE_CONFIGS,
            1,
            messages.DescribeConfigsRequest(
                resources=[_CONFIGS(resource_type=4, resource_name=LONG, configuration_keys=None)]
            ),
        ),
        (
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            0,
            messages.DescribeClientQuotasRequest(
                components=[_QUOTAS(entity_type=LONG, match_type=2, match=None)], strict=False
            ),
        ),
    ],
)
async def test_the_response_can_be_encoded(key: ApiKey, version: int, message: Any) -> None:
    served = services()
    handler = Registry(served).find(key, version)
    assert handler is not None
    response = handler.handle(request(served, key, version, message))
    if inspect.isawaitable(response):
        response = await response
    assert encode_message(response, version)


def test_what_a_controller_says_is_cut() -> None:
    assert len(Outcome(message=f"no such {LONG}").message) <= MESSAGE_CHARACTERS_MAX + 3
    assert Outcome(message="short").message == "short"
