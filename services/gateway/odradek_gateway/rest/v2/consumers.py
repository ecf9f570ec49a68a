"""v2: consumer instances, and what they read. Any gateway serves any of them (see odradek_gateway.consumers)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import re2
from fastapi import APIRouter, Request
from fastapi.responses import Response

from odradek.partitions import TopicPartition
from odradek_gateway.consumers.instance import INSTANCE_CONFIGS, Instance, spec_of_request
from odradek_gateway.consumers.instances import Instances
from odradek_gateway.rest.errors import ILLEGAL_STATE, RestError
from odradek_gateway.rest.media_types import NO_RECORDS, V2_BODIES
from odradek_gateway.rest.parameters import TOPIC_PATTERN, GroupName, InstanceName
from odradek_gateway.rest.request_bodies import INT32_MAX, JsonBody
from odradek_gateway.rest.v2.at_owner import BASE, ERRORS, at_owner, instances_of
from odradek_gateway.rest.v2.shapes import Assignments, InstanceMade, Subscription
from odradek_gateway.rest.v2.topics import answer

router = APIRouter(tags=["v2 consumers"])
_Topic = Annotated[str, msgspec.Meta(pattern=TOPIC_PATTERN)]


class SubscribeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Either of both."""

    topics: list[_Topic] | None = None
    topic_pattern: Annotated[str, msgspec.Meta(min_length=1)] | None = None


class NamedPartition(msgspec.Struct):
    """A partition."""

    topic: _Topic
    partition: Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]

    @property
    def name(self) -> TopicPartition:
        """As the SDK has it."""
        return TopicPartition(self.topic, self.partition)


class NamedPartitions(msgspec.Struct, forbid_unknown_fields=True):
    """At least one."""

    partitions: Annotated[list[NamedPartition], msgspec.Meta(min_length=1)]


_INSTANCE = JsonBody(
    dict[str, Any], media_types=V2_BODIES, also_taken=NO_RECORDS, is_v2=True, empty={}
)
_INSTANCE.openapi["requestBody"]["content"] = {
    name: {"schema": INSTANCE_CONFIGS} for name in V2_BODIES
}
_SUBSCRIPTION = JsonBody(SubscribeRequest, media_types=V2_BODIES, also_taken=NO_RECORDS, is_v2=True)
PARTITIONS = JsonBody(NamedPartitions, media_types=V2_BODIES, also_taken=NO_RECORDS, is_v2=True)


@router.post(
    "/consumers/{group}",
    response_model=InstanceMade,
    responses=ERRORS,
    openapi_extra=_INSTANCE.openapi,
)
async def create_instance(group: GroupName, request: Request) -> Response:
    """Make an instance; `base_uri` is where it is asked."""
    body = await _INSTANCE.read(request)
    spec = await instances_of(request).create(spec_of_request(group, body))
    base = str(request.base_url).rstrip("/")
    path = f"consumers/{quote(group, safe='')}/instances/{quote(spec.name, safe='')}"
    return answer({"instance_id": spec.name, "base_uri": f"{base}/{path}"}, request)


@router.delete(BASE, status_code=204, responses=ERRORS)
async def delete_instance(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """Leave the group and forget the instance."""

    async def work(instances: Instances, found: Instance, _body: bytes) -> Response:
        await instances.remove(found)
        return Response(status_code=204)

    return await at_owner(group, instance, request, work)


@router.post(
    f"{BASE}/subscription",
    status_code=204,
    responses=ERRORS,
    openapi_extra=_SUBSCRIPTION.openapi,
)
async def subscribe(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """To topics by name, or by a pattern (RE2 syntax)."""
    _SUBSCRIPTION.check_type(request)

    async def work(instances: Instances, found: Instance, body: bytes) -> Response:
        wanted = _SUBSCRIPTION.decode(body)
        if bool(wanted.topics) == (wanted.topic_pattern is not None):
            words = "give either topics, at least one, or topic_pattern"
            raise RestError(409, ILLEGAL_STATE, words)
        if wanted.topic_pattern is not None:
            _require_pattern(wanted.topic_pattern)
        spec = replace(found.spec, topics=tuple(wanted.topics or ()), pattern=wanted.topic_pattern)
        await instances.use(found, spec)
        await found.consumer()  # join now: the first records request then finds records
        return Response(status_code=204)

    return await at_owner(group, instance, request, work)


@router.get(f"{BASE}/subscription", response_model=Subscription, responses=ERRORS)
async def get_subscription(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """Topics by name, and the pattern."""

    async def work(_instances: Instances, found: Instance, _body: bytes) -> Response:
        told: dict[str, Any] = {"topics": list(found.spec.topics)}
        if found.spec.pattern is not None:
            told["topic_pattern"] = found.spec.pattern
        return answer(told, request)

    return await at_owner(group, instance, request, work)


@router.delete(f"{BASE}/subscription", status_code=204, responses=ERRORS)
async def unsubscribe(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """From all."""

    async def work(instances: Instances, found: Instance, _body: bytes) -> Response:
        await instances.use(found, replace(found.spec, topics=(), pattern=None))
        return Response(status_code=204)

    return await at_owner(group, instance, request, work)


@router.post(
    f"{BASE}/assignments", status_code=204, responses=ERRORS, openapi_extra=PARTITIONS.openapi
)
async def assign(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """Exactly these partitions, without the group's help."""
    PARTITIONS.check_type(request)

    async def work(instances: Instances, found: Instance, body: bytes) -> Response:
        names = dict.fromkeys(one.name for one in PARTITIONS.decode(body).partitions)
        spec = replace(found.spec, partitions=tuple((n.topic, n.partition) for n in names))
        await instances.use(found, spec)
        return Response(status_code=204)

    return await at_owner(group, instance, request, work)


@router.get(f"{BASE}/assignments", response_model=Assignments, responses=ERRORS)
async def get_assignments(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """What it reads now; nothing before it is subscribed or assigned."""

    async def work(_instances: Instances, found: Instance, _body: bytes) -> Response:
        names = (await found.consumer()).assignment() if found.reads_something else []
        told = [{"topic": n.topic, "partition": n.partition} for n in names]
        return answer({"partitions": told}, request)

    return await at_owner(group, instance, request, work)


def _require_pattern(pattern: str) -> None:
    try:
        re2.compile(pattern)
    except re2.error as error:
        raise RestError(422, 422, f"topic_pattern is not in RE2's syntax: {error}") from None
