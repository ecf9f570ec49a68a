"""Bodies of requests, read with a bound, and what hangs on the application."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import Request

from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.errors import RestError


def cluster_of(request: Request) -> ClusterAccess:
    """The process's access to the cluster (a dependency of routes)."""
    cluster = request.app.state.cluster
    assert isinstance(cluster, ClusterAccess), "the application has no cluster"
    return cluster


async def read_body(request: Request) -> bytes:
    """The whole body; 413 as soon as it is too large, whatever its length field says."""
    limit = cluster_of(request).settings.body_bytes_max
    told = request.headers.get("content-length")
    if told is not None and told.isdigit() and int(told) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


async def read_json(request: Request, *, empty: Any = None) -> Any:
    """The body as JSON; `empty` for none; 400 when it is not JSON."""
    body = await read_body(request)
    if not body.strip():
        if empty is None:
            raise RestError(400, 400, "the body is empty; JSON is expected")
        return empty
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RestError(400, 400, f"the body is not JSON: {error}") from None


def _too_large(limit: int) -> RestError:
    return RestError(413, 413, f"the body is larger than {limit} bytes (request.body.bytes.max)")
