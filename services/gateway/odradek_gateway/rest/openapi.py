"""openapi.json as it is served, and what else follows from it: which methods a path has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from odradek_gateway.rest.media_types import BINARY_V2, JSON_V2, PLAIN, V2

_RECORDS: Final = "/consumers/{group}/instances/{instance}/records"
_PARAMETER: Final = re.compile(r"\{[^}]+\}")


def describe(app: FastAPI) -> dict[str, Any]:
    """FastAPI's description; answers of v2 stand under every media type that they may come in."""
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
    """What `Allow` says of a path: several routes have the same path, and each knows its own method only."""

    def __init__(self, paths: dict[str, Any]) -> None:
        self._methods = [
            (re.compile(_pattern(path)), sorted(method.upper() for method in item))
            for path, item in paths.items()
        ]

    def of(self, path: str) -> Iterable[str]:
        """Methods of the first path that matches, as routes are matched."""
        for pattern, methods in self._methods:
            if pattern.fullmatch(path):
                return methods
        return ()


def _pattern(template: str) -> str:
    return "[^/]+".join(re.escape(piece) for piece in _PARAMETER.split(template))
