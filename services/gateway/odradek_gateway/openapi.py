"""openapi.json, the methods that each path allows, and the docs page.

The docs page is Swagger UI, which shows openapi.json and can send requests. The gateway serves all files of the page,
so the page works without internet access. The page's content security policy allows files of the gateway only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from importlib import resources
from typing import Any, Final

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute

from odradek_gateway.rest.media_types import BINARY_V2, JSON_V2, PLAIN, V2

_RECORDS: Final = "/consumers/{group}/instances/{instance}/records"


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the openapi.json that FastAPI makes. For each v2 response, list all media types that it may have."""
    described = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for path, item in described["paths"].items():
        for operation in item.values():
            if path.startswith("/v3/") or operation["tags"] == ["health"]:
                continue
            for status, response in operation["responses"].items():
                is_records = path == _RECORDS and status == "200"
                types = (BINARY_V2, JSON_V2, V2) if is_records else (V2, PLAIN)
                if PLAIN in response.get("content", ()):
                    content = response["content"][PLAIN]
                    response["content"] = dict.fromkeys(types, content)
    return described


class AllowedMethods:
    """The methods that each path allows, for the header `Allow`.

    Several routes may share a path, and FastAPI's error for a wrong method names the methods of one route only.
    """

    def __init__(self, routers: Iterable[APIRouter]) -> None:
        self._methods: dict[str, tuple[re.Pattern[str], set[str]]] = {}
        for router in routers:
            for route in router.routes:
                assert isinstance(route, APIRoute), route
                _, methods = self._methods.setdefault(route.path, (route.path_regex, set()))
                methods |= route.methods or set()

    def of(self, path: str) -> list[str]:
        """Return the methods of the first path pattern that matches `path`, sorted; none if no pattern matches."""
        for pattern, methods in self._methods.values():
            if pattern.fullmatch(path):
                return sorted(methods)
        return []


router = APIRouter()
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>TITLE</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START: Final = b"""SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  validatorUrl: null,
});
"""
_MEDIA_TYPES: Final = {".js": "text/javascript", ".css": "text/css"}
PAGE_FILES: Final = ("swagger-ui.css", "swagger-ui-bundle.js", "start.js")


@router.api_route("/openapi.json", methods=["GET", "HEAD"], include_in_schema=False)
def openapi_json(request: Request) -> JSONResponse:
    """Return openapi.json. FastAPI runs this plain function in a thread, because the first call takes long."""
    return JSONResponse(request.app.openapi())


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Return the web page that shows every operation, and from which users can send requests."""
    return HTMLResponse(page_of(request.app.title), headers={"content-security-policy": _POLICY})


@router.get("/docs/{name}", include_in_schema=False)
def docs_file(name: str) -> Response:
    """Return a file of the docs page."""
    if name not in PAGE_FILES:
        raise HTTPException(404)
    return Response(page_file(name), media_type=_MEDIA_TYPES[name[name.rindex(".") :]])


def page_of(title: str) -> str:
    """Return the HTML of the docs page. It loads PAGE_FILES from `docs/`, and `openapi.json`."""
    return _PAGE.replace("TITLE", escape(title))


def page_file(name: str) -> bytes:
    """Return the content of one of PAGE_FILES. The files of Swagger UI come from the package fastapi-offline."""
    if name == "start.js":
        return _START
    return (resources.files("fastapi_offline") / "static" / name).read_bytes()
