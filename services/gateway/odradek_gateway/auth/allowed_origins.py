"""CORS: how browsers learn that pages of `http.allowed.origins` may use this gateway.

Before a page's request with a JSON body or an Authorization header, the browser asks the gateway with a preflight
(OPTIONS). `BrowserRules` answers it after its own checks and before authentication, because a preflight has no
credentials. A page can read a response only if the response names the page's origin. So `Limits`, the outermost
middleware, adds the headers to every response, also to the errors of all middlewares.

Access-Control-Allow-Credentials is never sent, so browsers send such requests without the visitor's client certificate
and remembered password, or do not show the response to the page. A page logs in with an Authorization header of its
own. Otherwise every allowed site, and with `*` every site, could use the gateway as any of its visitors.

Starlette's CORSMiddleware does not fit: it is one middleware, so either it would answer preflights before the check of
the Host header, or the errors of the middlewares around it would have no headers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

Headers = list[tuple[bytes, bytes]]
_ASKED_METHOD: Final = b"access-control-request-method"
_PREFLIGHT: Final = (
    (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE"),
    (b"access-control-allow-headers", b"accept, authorization, content-type"),
    (b"access-control-max-age", b"600"),
)
_READABLE: Final = (b"access-control-expose-headers", b"Allow, Location, Retry-After")


class AllowedOrigins:
    """The origins of other sites whose pages may use the gateway, like `https://site`; `*` means any origin."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    def __contains__(self, origin: str) -> bool:
        return "*" in self._origins or origin.lower().rstrip("/") in self._origins

    def response_headers(self, scope: dict[str, Any]) -> Headers:
        """Return the headers that let a page of an allowed origin read the response; none for other requests."""
        if not self._origins:
            return []
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        if len(origins) != 1 or origins[0].decode("latin-1") not in self:
            return []
        headers = [(b"access-control-allow-origin", origins[0]), (b"vary", b"Origin")]
        return headers if _is_preflight(scope) else [*headers, _READABLE]

    def preflight_headers(self, scope: dict[str, Any]) -> Headers | None:
        """Return the headers of the answer to a preflight, without `response_headers`. None if the request is not a
        preflight of an allowed origin.
        """
        return list(_PREFLIGHT) if _is_preflight(scope) and self.response_headers(scope) else None


def _is_preflight(scope: dict[str, Any]) -> bool:
    return scope["method"] == "OPTIONS" and any(
        name == _ASKED_METHOD for name, _ in scope["headers"]
    )
