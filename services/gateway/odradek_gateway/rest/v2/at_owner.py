"""How a request about a consumer instance comes to the gateway that serves it, and waits its turn there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import Request
from fastapi.responses import Response

from odradek_gateway.consumers.instance import Instance
from odradek_gateway.consumers.instances import Elsewhere, Instances, PassedRequest, in_motion
from odradek_gateway.rest.connected import while_connected
from odradek_gateway.rest.errors import errors_of
from odradek_gateway.rest.media_types import headers_for_older_gateways
from odradek_gateway.rest.request_bodies import read_body

BASE = "/consumers/{group}/instances/{instance}"
ERRORS = errors_of(400, 401, 403, 404, 406, 408, 409, 413, 415, 422, 429, 500, 503)
_FINDS_MAX: Final = 3
Work = Callable[[Instances, Instance, bytes], Awaitable[Response]]


def instances_of(request: Request) -> Instances:
    """The process's instances."""
    found = request.app.state.instances
    assert isinstance(found, Instances), "the application has no instances"
    return found


async def at_owner(
    group: str, name: str, request: Request, work: Work, *, at_stop: Elsewhere | None = None
) -> Response:
    """Do `work` with the instance and the request's body if it is served here; else pass the request on.

    `at_stop` is for long polls: what one that was passed on is answered when this gateway stops.
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
        found = await instances.find(group, name, passed)
        if isinstance(found, Elsewhere):
            return Response(found.body, found.status, media_type=found.media_type)
        async with found.turn():
            if not found.is_ended:  # while this request waited for its turn
                try:
                    return await work(instances, found, body)
                finally:
                    found.used()  # a poll may last longer than an instance may be idle
    raise in_motion()
