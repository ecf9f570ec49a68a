"""openapi.json, the methods that each path allows, and the docs page.

The docs page shows openapi.json as one HTML page, without scripts and without a request to anywhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse

from odradek_gateway.rest.media_types import BINARY_V2, JSON_V2, PLAIN, V2

_RECORDS: Final = "/consumers/{group}/instances/{instance}/records"
_PARAMETER: Final = re.compile(r"\{[^}]+\}")


def describe(app: FastAPI) -> dict[str, Any]:
    """Return FastAPI's openapi.json, with responses of v2 under every media type that they may have."""
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
    """The methods of each path, for `Allow`: several routes share a path, and each knows its own method only."""

    def __init__(self, paths: dict[str, Any]) -> None:
        self._methods = [
            (re.compile(_pattern(path)), sorted(method.upper() for method in item))
            for path, item in paths.items()
        ]

    def of(self, path: str) -> Iterable[str]:
        """Return the methods of the first path that matches, as routes are matched."""
        for pattern, methods in self._methods:
            if pattern.fullmatch(path):
                return methods
        return ()


def _pattern(template: str) -> str:
    return "[^/]+".join(re.escape(piece) for piece in _PARAMETER.split(template))


router = APIRouter()
_HEADERS: Final = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
_STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
summary { cursor: pointer; padding: .2rem 0; } summary code { font-weight: 600; }
.method { display: inline-block; width: 4.5rem; font: 600 .8rem monospace; }
table { border-collapse: collapse; margin: .5rem 0 1rem; } pre { overflow-x: auto; font-size: .8rem; }
td, th { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top; }
"""


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Show every path with its parameters, its body and its responses."""
    return HTMLResponse(page_of(request.app.openapi()), headers=_HEADERS)


def page_of(openapi: dict[str, Any]) -> str:
    """Return the docs page of an openapi.json."""
    title = escape(openapi["info"]["title"])
    sections: dict[str, list[str]] = {}
    for path, item in openapi["paths"].items():
        for method, operation in item.items():
            tag = operation.get("tags", ["other"])[0]
            sections.setdefault(tag, []).append(_operation(method, path, operation))
    body = "".join(f"<h2>{escape(tag)}</h2>{''.join(ops)}" for tag, ops in sections.items())
    shapes = "".join(
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"<pre>{escape(json.dumps(schema, indent=1))}</pre></details>"
        for name, schema in openapi["components"]["schemas"].items()
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>{escape(openapi['info']['description'])}</p>"
        f'<p>For programs: <a href="openapi.json">openapi.json</a></p>'
        f"{body}<h2>Shapes</h2>{shapes}</body></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(p['name'])}</code></td><td>{escape(p['in'])}</td>"
        f"<td>{'required' if p.get('required') else ''}</td></tr>"
        for p in operation.get("parameters", ())
    )
    parameters = f"<table>{rows}</table>" if rows else ""
    bodies = "".join(
        f"<p>Body <code>{escape(kind)}</code></p>"
        f"<pre>{escape(json.dumps(content['schema'], indent=1))}</pre>"
        for kind, content in operation.get("requestBody", {}).get("content", {}).items()
    )
    responses = "".join(
        f"<tr><td>{escape(status)}</td><td>{_shape(response)}</td></tr>"
        for status, response in operation["responses"].items()
    )
    return (
        f'<details><summary><span class="method">{escape(method.upper())}</span>'
        f"<code>{escape(path)}</code> {escape(operation.get('description', '').splitlines()[0])}"
        f"</summary>{parameters}{bodies}<table>{responses}</table></details>"
    )


def _shape(response: dict[str, Any]) -> str:
    for content in response.get("content", {}).values():
        name = str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]
        if name:
            return f'<a href="#{escape(name)}">{escape(name)}</a>'
        return escape(json.dumps(content.get("schema", {})))
    return "no body"
