"""Lists of a response: a short one has a Content-Length, a long one is sent in chunks, and both are the same JSON."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import Response

from odradek_gateway.rest.responses import ITEMS_PER_PIECE, json_object


@pytest.mark.parametrize("items_at_once", [1, ITEMS_PER_PIECE, 1_000])
@pytest.mark.parametrize("difference", [-1, 0, 1])
async def test_a_list_is_chunked_only_beyond_the_items_that_are_sent_at_once(
    items_at_once: int, difference: int
) -> None:
    app = FastAPI()
    count = items_at_once + difference

    @app.get("/")
    async def listing() -> Response:
        return json_object({"fixed": None}, "items", range(count), items_at_once=items_at_once)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://g") as http:
        response = await http.get("/")
    assert response.json() == {"fixed": None, "items": list(range(count))}
    length = response.headers.get("content-length")
    assert length == (None if difference > 0 else str(len(response.content)))
