"""The form of v3 resources: `kind`, `metadata` with `self` and `resource_name`, and links to related resources."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote

from fastapi import Depends, Request
from fastapi.responses import Response

from odradek.errors import UnknownTopic
from odradek_gateway.errors import RestError, errors_of
from odradek_gateway.rest.requests import cluster_of
from odradek_gateway.rest.responses import json_object

PREFIX: Final = "/v3/clusters/{cluster_id}"
ERRORS: Final = errors_of(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503)


class Names:
    """Makes the URLs and resource names (`crn:///...`) of resources in one cluster. URLs begin with the address that
    the client used.
    """

    def __init__(self, request: Request, cluster_id: str) -> None:
        self._base = f"{str(request.base_url).rstrip('/')}/v3/clusters/{cluster_id}"
        self._crn = f"crn:///kafka={cluster_id}"
        self.cluster_id = cluster_id

    def url(self, *parts: object) -> str:
        """Return the URL of a resource."""
        return "/".join([self._base, *(_quoted(part) for part in parts)])

    def metadata(self, *parts: object) -> dict[str, str]:
        """Return `self` and `resource_name` of a resource. `parts` is its path: kind, name, kind, name, ..."""
        pairs = [f"/{_singular(str(parts[i]))}={parts[i + 1]}" for i in range(0, len(parts) - 1, 2)]
        return {"self": self.url(*parts), "resource_name": self._crn + "".join(pairs)}

    def link(self, *parts: object) -> dict[str, str]:
        """Return a link to a related resource."""
        return {"related": self.url(*parts)}

    def collection(self, kind: str, data: Iterable[dict[str, Any]], *parts: object) -> Response:
        """Return a response with a list of resources. `data` is consumed while the response is sent.

        Lists are never paged, so `next` is null.
        """
        fields = {
            "kind": f"Kafka{kind}List",
            "metadata": {"self": self.url(*parts), "next": None},
        }
        return json_object(fields, "data", data)


async def names_of(request: Request, cluster_id: str) -> Names:
    """Return the `Names` for a request. Raises RestError 404 if the path names another cluster than the gateway's."""
    own = await cluster_of(request).cluster_id()
    if cluster_id != own:
        raise RestError(404, 404, f"this gateway serves cluster {own}, not {cluster_id}")
    return Names(request, cluster_id)


def _quoted(part: object) -> str:
    text = str(part)
    # Most parts are numbers and plain names, which need no quoting. Calling `quote` for them, too, would take most of
    # the time in which a long response is made.
    return text if text.isascii() and text.isalnum() else quote(text, safe=":")


InCluster = Annotated[Names, Depends(names_of)]


def _singular(kind: str) -> str:
    return {
        "consumer-groups": "consumer-group",
        "configs": "config",
        "lags": "lag",
        "replicas": "replica",
    }.get(kind, kind.rstrip("s"))


AT_ONCE: Final = 16
T = TypeVar("T")
R = TypeVar("R")


async def ask_for_each(items: Iterable[T], request: Callable[[T], Awaitable[R]]) -> list[R]:
    """Call `request` for each item, for at most AT_ONCE items at a time, and return the results in the order of the
    items. An item that has been deleted (UnknownTopic, or RestError 404) has no result.
    """
    results: dict[int, R] = {}
    remaining = iter(enumerate(items))

    async def request_remaining() -> None:
        for number, item in remaining:
            try:
                results[number] = await request(item)
            except UnknownTopic:
                pass
            except RestError as error:
                if error.status != 404:
                    raise

    tasks = [asyncio.create_task(request_remaining()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return [results[number] for number in sorted(results)]
