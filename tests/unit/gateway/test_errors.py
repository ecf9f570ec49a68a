"""The HTTP errors of failures: clients repeat a request after error code 50003, but not after 50002."""

from __future__ import annotations

import json

import pytest
from starlette.requests import Request

from odradek import errors
from odradek_gateway.errors import on_rest_error, rest_error_of
from odradek_gateway.rest.records import failure_of


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.DeliveryTimedOut("brokers were away for half a minute"), 50003),
        (errors.ClientClosed("this gateway stops"), 50003),
        (errors.BufferFull("brokers are slow"), 50003),
        (errors.NotEnoughReplicas("too few are in sync"), 50003),
        (errors.SequenceLost("an unclean election"), 50002),
        (errors.SerializationFailed("no record"), 50002),
        (errors.AuthorizationFailed("no"), 40301),
        (errors.UnknownTopic("none"), 40401),
        (errors.RecordTooLarge("large"), 413),
    ],
)
def test_a_record_is_to_be_sent_again_when_that_may_help(
    error: errors.OdradekError, code: int
) -> None:
    """Kafka's TimeoutException is retriable, too, although the record may have been written."""
    assert failure_of(error).error_code == code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.DeliveryTimedOut("the registry cannot be written"), 503),
        (errors.ClientClosed("this gateway stops"), 503),
        (errors.BufferFull("brokers are slow"), 429),
        (errors.SequenceLost("an unclean election"), 500),
    ],
)
def test_a_request_is_to_be_sent_again_when_that_may_help(
    error: errors.OdradekError, status: int
) -> None:
    assert rest_error_of(error).status == status


@pytest.mark.parametrize(
    ("route", "code"),
    [
        ("GET /topics/t", 40403),
        ("GET /topics/t/partitions", 40401),
        ("POST /v3/clusters/c/topics/t/records", 40401),
        ("POST /v3/clusters/c/topics/t/records:batch", 40401),
        ("POST /v3/clusters/c/transactions", 40401),
        ("GET /v3/clusters/c/topics/t/configs", 40403),
        ("GET /v3/clusters/c/topics/records", 40403),
        ("GET /v3/clusters/c/topics/transactions", 40403),
    ],
)
async def test_an_unknown_topic_has_the_code_of_its_route(route: str, code: int) -> None:
    method, _, path = route.partition(" ")
    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    request = Request(scope | {"server": ("gateway", 8080), "scheme": "http"})
    response = await on_rest_error(request, errors.UnknownTopic("there is no topic t"))
    assert (response.status_code, json.loads(response.body)["error_code"]) == (404, code)
