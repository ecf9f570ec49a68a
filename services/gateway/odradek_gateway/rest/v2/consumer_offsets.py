"""The v2 routes by which a consumer instance commits offsets and seeks."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from odradek.cluster.turns import in_turns
from odradek.consumer.consumer import Consumer
from odradek.partitions import TopicPartition
from odradek_gateway.errors import ILLEGAL_STATE, PARTITION_NOT_FOUND, RestError
from odradek_gateway.rest.media_types import NO_RECORDS, V2_BODIES
from odradek_gateway.rest.requests import INT64_MAX, GroupName, InstanceName, JsonBody
from odradek_gateway.rest.responses import json_object
from odradek_gateway.rest.v2.consumers import BASE, ERRORS, PARTITIONS, NamedPartition, at_owner
from odradek_gateway.rest.v2.instance import Instance
from odradek_gateway.rest.v2.instances import Instances
from odradek_gateway.rest.v2.shapes import CommittedOffsets
from odradek_gateway.rest.v2.topics import media_type_of

router = APIRouter(tags=["v2 consumers"])


class NamedOffset(NamedPartition):
    """The partition and the offset of one record, in a commit or a seek."""

    offset: Annotated[int, msgspec.Meta(ge=0, lt=INT64_MAX)]
    metadata: str | None = None


class NamedTime(NamedPartition):
    """A partition and the time to which an instance seeks (RFC 3339; a time without a zone is UTC)."""

    timestamp: datetime.datetime
    metadata: str | None = None


class CommitRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a commit: for each partition the offset of the last record that was processed. If `offsets` is null,
    all records that were read are committed.
    """

    offsets: Annotated[list[NamedOffset], msgspec.Meta(min_length=1)] | None = None


class SeekRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a seek: offsets, times, or both."""

    offsets: list[NamedOffset] = []
    timestamps: list[NamedTime] = []


_OFFSETS: Final = {"offsets": [{"topic": "greetings", "partition": 0, "offset": 0}]}
_COMMIT = JsonBody(
    CommitRequest,
    media_types=V2_BODIES,
    also_taken=NO_RECORDS,
    is_v2=True,
    empty=CommitRequest(),
    example=_OFFSETS,
)
_SEEK = JsonBody(
    SeekRequest, media_types=V2_BODIES, also_taken=NO_RECORDS, is_v2=True, example=_OFFSETS
)


@router.post(
    f"{BASE}/offsets", response_class=Response, responses=ERRORS, openapi_extra=_COMMIT.openapi
)
async def commit(
    group: GroupName,
    instance: InstanceName,
    request: Request,
    is_async: Annotated[str, Query(alias="async")] = "false",
) -> Response:
    """Commit the offsets in the body. With an empty body, commit all records that the instance has read.

    The response comes after the commit, even if the query parameter `async` is true.
    """
    _COMMIT.check_type(request)

    async def work(_instances: Instances, instance: Instance, body: bytes) -> Response:
        offsets = _COMMIT.decode(body).offsets
        # A request names the last processed record, but a committed offset is that of the next record.
        await instance.commit(
            None if offsets is None else {at.name: at.offset + 1 async for at in in_turns(offsets)}
        )
        return Response(status_code=200)

    return await at_owner(group, instance, request, work)


@router.get(
    f"{BASE}/offsets",
    response_model=CommittedOffsets,
    responses=ERRORS,
    openapi_extra=PARTITIONS.openapi,
)
async def committed(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """Return the group's committed offsets for the partitions in the body (the API defines a GET with a body).

    A commit request names the offset of the last processed record, but this response has the offset after it, as in
    Kafka's REST proxy.
    """
    PARTITIONS.check_type(request)

    async def work(_instances: Instances, instance: Instance, body: bytes) -> Response:
        if not body:
            raise RestError(
                404, PARTITION_NOT_FOUND, "the body is empty: it must name the partitions"
            )
        partitions = PARTITIONS.decode(body).partitions
        names = list({named.name: None async for named in in_turns(partitions)})
        offsets = await instance.client.admin.group_offsets(instance.spec.group, names)
        listed = (
            {"topic": n.topic, "partition": n.partition, "offset": offsets[n], "metadata": ""}
            for n in names
            if n in offsets
        )
        return json_object({}, "offsets", listed, media_type=media_type_of(request))

    return await at_owner(group, instance, request, work)


@router.post(f"{BASE}/positions", status_code=204, responses=ERRORS, openapi_extra=_SEEK.openapi)
async def seek(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """Seek to offsets, or to the first records at or after given times."""
    _SEEK.check_type(request)

    async def work(_instances: Instances, instance: Instance, body: bytes) -> Response:
        seek = _SEEK.decode(body)
        times = {at.name: _ms_of(at.timestamp) async for at in in_turns(seek.timestamps)}
        offsets = {at.name: at.offset async for at in in_turns(seek.offsets)}
        if not times and not offsets:
            raise RestError(
                422, 422, "the body has neither offsets nor timestamps: it needs at least one entry"
            )
        consumer = await instance.consumer()
        await _require_assigned(consumer, [*times, *offsets])
        async for name, offset in in_turns(offsets.items()):
            consumer.seek(name, offset)
        async for name, timestamp_ms in in_turns(times.items()):
            consumer.seek_to_timestamp(timestamp_ms, name)
        return Response(status_code=204)

    return await at_owner(group, instance, request, work)


@router.post(
    f"{BASE}/positions/beginning",
    status_code=204,
    responses=ERRORS,
    openapi_extra=PARTITIONS.openapi,
)
async def seek_to_beginning(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """Seek to the beginning of the partitions in the body."""
    return await _seek_all(group, instance, request, Consumer.seek_to_beginning)


@router.post(
    f"{BASE}/positions/end", status_code=204, responses=ERRORS, openapi_extra=PARTITIONS.openapi
)
async def seek_to_end(group: GroupName, instance: InstanceName, request: Request) -> Response:
    """Seek to the end of the partitions in the body."""
    return await _seek_all(group, instance, request, Consumer.seek_to_end)


async def _seek_all(
    group: str,
    instance: str,
    request: Request,
    seek: Callable[[Consumer, TopicPartition], None],
) -> Response:
    PARTITIONS.check_type(request)

    async def work(_instances: Instances, instance: Instance, body: bytes) -> Response:
        partitions = PARTITIONS.decode(body).partitions
        names = [named.name async for named in in_turns(partitions)]
        consumer = await instance.consumer()
        await _require_assigned(consumer, names)
        async for name in in_turns(names):
            seek(consumer, name)
        return Response(status_code=204)

    return await at_owner(group, instance, request, work)


async def _require_assigned(consumer: Consumer, names: list[TopicPartition]) -> None:
    """Raise RestError 40903 if the consumer is not assigned all of these partitions. It is called before a seek changes
    any position.
    """
    assigned = set(consumer.assignment())
    async for name in in_turns(names):
        if name not in assigned:
            words = f"{name} is not assigned to this instance"
            raise RestError(409, ILLEGAL_STATE, words)


def _ms_of(moment: datetime.datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(0, int(moment.timestamp() * 1000))
