"""The v2 routes that create, subscribe, assign and delete consumer instances. Any gateway accepts requests about any
instance (see `instances`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
import re2
from fastapi import APIRouter, Request
from fastapi.responses import Response

from odradek.cluster.turns import in_turns
from odradek.partitions import TopicPartition
from odradek_gateway.errors import ILLEGAL_STATE, RestError, errors_of
from odradek_gateway.rest.media_types import NO_RECORDS, V2_BODIES, headers_for_older_gateways
from odradek_gateway.rest.requests import (
    INT32_MAX,
    GroupName,
    InstanceName,
    JsonBody,
    read_body,
    while_connected,
)
from odradek_gateway.rest.responses import json_object
from odradek_gateway.rest.v2.instance import INSTANCE_CONFIGS, Instance, spec_of_request
from odradek_gateway.rest.v2.instances import Instances, in_motion
from odradek_gateway.rest.v2.other_gateways import Elsewhere, PassedRequest
from odradek_gateway.rest.v2.shapes import Assignments, InstanceMade, Subscription
from odradek_gateway.rest.v2.topics import json_response, media_type_of
from odradek_protocol.topic_names import TOPIC_NAME_PATTERN

BASE = "/consumers/{group}/instances/{instance}"
ERRORS = errors_of(400, 401, 403, 404, 406, 408, 409, 413, 415, 422, 429, 500, 503)
_FINDS_MAX: Final = 3
Work = Callable[[Instances, Instance, bytes], Awaitable[Response]]


def instances_of(request: Request) -> Instances:
    """Return the consumer instances of this process."""
    instances = request.app.state.instances
    assert isinstance(instances, Instances), "the application has no instances"
    return instances


async def at_owner(
    group: str, name: str, request: Request, work: Work, *, at_stop: Elsewhere | None = None
) -> Response:
    """If this gateway serves the instance, call `work` with it and the request's body, and return the response. If
    another gateway serves the instance, pass the request on to it and return its response.

    `at_stop` is for long polls: it is the response if this gateway stops while the other gateway handles the request.
    """
    body = await read_body(request)
    instances = instances_of(request)
    scope = request.scope
    passed = PassedRequest(
        request.method,
        scope["raw_path"],
        scope["query_string"],
        headers_for_older_gateways(request.headers, carries_records=at_stop is not None),
        body,
        lambda: while_connected(request),
        at_stop,
    )
    for _ in range(_FINDS_MAX):
        instance = await instances.find(group, name, passed)
        if isinstance(instance, Elsewhere):
            return Response(instance.body, instance.status, media_type=instance.media_type)
        async with instance.turn():
            # The instance may have ended while this request waited for its turn.
            if not instance.is_ended:
                try:
                    return await work(instances, instance, body)
                finally:
                    # A long poll may last longer than consumer.instance.timeout.ms.
                    instance.used()
    raise in_motion()


router = APIRouter(tags=["v2 consumers"])
_Topic = Annotated[str, msgspec.Meta(pattern=TOPIC_NAME_PATTERN)]


class SubscribeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A subscription: either topic names, or a pattern for topic names (RE2 syntax)."""

    topics: list[_Topic] | None = None
    topic_pattern: Annotated[str, msgspec.Meta(min_length=1)] | None = None


class NamedPartition(msgspec.Struct):
    """A partition that a request names."""

    topic: _Topic
    partition: Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]

    @property
    def name(self) -> TopicPartition:
        """The partition as the SDK's TopicPartition."""
        return TopicPartition(self.topic, self.partition)


class NamedPartitions(msgspec.Struct, forbid_unknown_fields=True):
    """The partitions that a request names. There is at least one."""

    partitions: Annotated[list[NamedPartition], msgspec.Meta(min_length=1)]


_INSTANCE = JsonBody(
    dict[str, Any], media_types=V2_BODIES, also_taken=NO_RECORDS, is_v2=True, empty={}
)
_INSTANCE.openapi["requestBody"]["content"] = {
    name: {
        "schema": INSTANCE_CONFIGS,
        "example": {"name": "reader-1", "format": "json", "auto.offset.reset": "earliest"},
    }
    for name in V2_BODIES
}
_SUBSCRIPTION = JsonBody(
    SubscribeRequest,
    media_types=V2_BODIES,
    also_taken=NO_RECORDS,
    is_v2=True,
    example={"topics": ["greetings"]},
)
PARTITIONS = JsonBody(
    NamedPartitions,
    media_types=V2_BODIES,
    also_taken=NO_RECORDS,
    is_v2=True,
    example={"partitions": [{"topic": "greetings", "partition": 0}]},
)


@router.post(
    "/consumers/{group}",
    response_model=InstanceMade,
    responses=ERRORS,
    openapi_extra=_INSTANCE.openapi,
)
async def create_instance(group: GroupName, request: Request) -> Response:
    """Create a consumer instance. The client sends further requests to the `base_uri` in the response."""
    body = await _INSTANCE.read(request)
    spec = await instances_of(request).create(spec_of_request(group, body))
    base = str(request.base_url).rstrip("/")
    path = f"consumers/{quote(group, safe='')}/instances/{quote(spec.name, safe='')}"
    return json_response({"instance_id": spec.name, "base_uri": f"{base}/{path}"}, request)


@router.delete(BASE, status_code=204, responses=ERRORS)
async def delete_instance(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """Leave the group and delete the instance."""

    async def work(instances: Instances, instance: Instance, _body: bytes) -> Response:
        await instances.remove(instance)
        return Response(status_code=204)

    return await at_owner(group, instance, request, work)


@router.post(
    f"{BASE}/subscription",
    status_code=204,
    responses=ERRORS,
    openapi_extra=_SUBSCRIPTION.openapi,
)
async def subscribe(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """Subscribe to topics by name, or by a pattern (RE2 syntax)."""
    _SUBSCRIPTION.check_type(request)

    async def work(instances: Instances, instance: Instance, body: bytes) -> Response:
        subscription = _SUBSCRIPTION.decode(body)
        if bool(subscription.topics) == (subscription.topic_pattern is not None):
            words = "the body must have either topics (at least one) or topic_pattern"
            raise RestError(409, ILLEGAL_STATE, words)
        if subscription.topic_pattern is not None:
            _require_pattern(subscription.topic_pattern)
        spec = replace(
            instance.spec,
            topics=tuple(subscription.topics or ()),
            pattern=subscription.topic_pattern,
        )
        await instances.use(instance, spec)
        # Join the group now, so that the first request for records returns some.
        await instance.consumer()
        return Response(status_code=204)

    return await at_owner(group, instance, request, work)


@router.get(f"{BASE}/subscription", response_model=Subscription, responses=ERRORS)
async def get_subscription(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """Return the instance's subscription: its topic names, or its pattern."""

    async def work(_instances: Instances, instance: Instance, _body: bytes) -> Response:
        topics, pattern = instance.spec.topics, instance.spec.pattern
        subscription = {} if pattern is None else {"topic_pattern": pattern}
        return json_object(subscription, "topics", topics, media_type=media_type_of(request))

    return await at_owner(group, instance, request, work)


@router.delete(f"{BASE}/subscription", status_code=204, responses=ERRORS)
async def unsubscribe(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """Unsubscribe from all topics."""

    async def work(instances: Instances, instance: Instance, _body: bytes) -> Response:
        await instances.use(instance, replace(instance.spec, topics=(), pattern=None))
        return Response(status_code=204)

    return await at_owner(group, instance, request, work)


@router.post(
    f"{BASE}/assignments", status_code=204, responses=ERRORS, openapi_extra=PARTITIONS.openapi
)
async def assign(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """Assign the partitions in the body to the instance, instead of any that it had, without group management."""
    PARTITIONS.check_type(request)

    async def work(instances: Instances, instance: Instance, body: bytes) -> Response:
        named = PARTITIONS.decode(body).partitions
        await asyncio.sleep(0)
        names = {partition.name: None async for partition in in_turns(named)}
        spec = replace(instance.spec, partitions=tuple((n.topic, n.partition) for n in names))
        await instances.use(instance, spec)
        return Response(status_code=204)

    return await at_owner(group, instance, request, work)


@router.get(f"{BASE}/assignments", response_model=Assignments, responses=ERRORS)
async def get_assignments(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """Return the partitions that are assigned to the instance. The list is empty if the instance has neither a
    subscription nor a manual assignment.
    """

    async def work(_instances: Instances, instance: Instance, _body: bytes) -> Response:
        names = (await instance.consumer()).assignment() if instance.reads_something else []
        partitions = ({"topic": n.topic, "partition": n.partition} for n in names)
        return json_object({}, "partitions", partitions, media_type=media_type_of(request))

    return await at_owner(group, instance, request, work)


def _require_pattern(pattern: str) -> None:
    try:
        re2.compile(pattern)
    except re2.error as error:
        raise RestError(422, 422, f"topic_pattern is not a valid RE2 pattern: {error}") from None
