"""Rules that refuse requests which a web page of another site made a browser send to this gateway.

A web page can make its visitor's browser send requests to any address that the browser reaches, with the visitor's
certificate or cached password (CSRF). The page can read the responses only if the host name of the page resolves to
the gateway's address (DNS rebinding). One rule prevents each attack:

- DNS rebinding: the `Host` header must occur once and name this gateway. Allowed are an IP address, a loopback name,
  the host of `advertised.url` or `listen`, and the names in `http.allowed.hosts`. With TLS any name is accepted,
  because the browser has checked the name against the certificate.
- CSRF: the origin in the headers `Sec-Fetch-Site` and `Origin` must be this gateway itself, or one of
  `http.allowed.origins`. Programs other than browsers send neither header and are not affected. A link on another
  site may lead to a page of the gateway.

This middleware also answers the preflights of allowed origins that pass the rules (see `allowed_origins`).
`rest.requests.JsonBody` refuses bodies without a Content-Type, because a page can send such a body without a CORS
preflight.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse

from odradek_gateway.auth.allowed_origins import AllowedOrigins
from odradek_gateway.auth.callers import HEALTH_PATHS
from odradek_gateway.errors import error_body
from odradek_runtime.logs import event_log

Asgi = Callable[..., Awaitable[None]]
_PAGES: Final = frozenset({"/", "/docs"})
_LOOPBACK_NAMES: Final = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})
_audit = event_log("odradek_gateway.audit")


class BrowserRules:
    """ASGI middleware that refuses requests of foreign web pages. It runs before authentication, so that a page cannot
    even find out whether the browser's credentials would be accepted.
    """

    def __init__(
        self,
        app: Asgi,
        *,
        hosts: Iterable[str],
        origins: AllowedOrigins,
    ) -> None:
        """`hosts` are the host names of this gateway; `*` allows any host."""
        self._app = app
        self._hosts = frozenset(name.lower() for name in hosts) | _LOOPBACK_NAMES
        self._origins = origins

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass the request on, answer a preflight with 204, or refuse the request with 400, 421 or 403."""
        if scope["type"] != "http" or scope["path"] in HEALTH_PATHS:
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            preflight = self._origins.preflight_headers(scope)
            if preflight is None:
                await self._app(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 204, "headers": preflight})
            await send({"type": "http.response.body", "body": b""})
            return
        status, message = refusal
        client = scope.get("client")
        _audit.warning(
            "Refused request",
            status=status,
            reason=message,
            host=str(client[0]) if client else "",
            request=f"{scope['method']} {scope['path'][:200]}",
        )
        response = JSONResponse(
            error_body(status, message), status, headers={"connection": "close"}
        )
        await response(scope, receive, send)

    def _refusal(self, scope: dict[str, Any]) -> tuple[int, str] | None:
        hosts = _values(scope, b"host")
        if len(hosts) != 1:
            return 400, "a request must have exactly one Host header"
        (host,) = hosts
        if not self._is_ours(host):
            return 421, (
                f"{host[:256]!r} is not a host name of this gateway: use its IP address, or add the name to"
                " http.allowed.hosts"
            )
        if self._is_foreign(scope, host):
            return 403, (
                "a web page of another site sent this request: to allow that site, add it to"
                " http.allowed.origins"
            )
        return None

    def _is_ours(self, host: str) -> bool:
        name = _name_of(host)
        if "*" in self._hosts or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _is_foreign(self, scope: dict[str, Any], host: str) -> bool:
        """Return whether a page of another origin made the browser send the request."""
        origins = _values(scope, b"origin")
        if "*" in self._origins or any(origin in self._origins for origin in origins):
            return False
        if origins:
            own = f"{scope['scheme']}://{host}".lower()
            return any(origin.lower().rstrip("/") != own for origin in origins)
        sites = _values(scope, b"sec-fetch-site")
        if all(site in ("same-origin", "none") for site in sites):
            return False
        follows_link = (
            _values(scope, b"sec-fetch-mode") == ["navigate"]
            and scope["method"] in ("GET", "HEAD")
            and scope["path"] in _PAGES
        )
        return not follows_link


def _values(scope: dict[str, Any], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _name_of(host: str) -> str:
    """Return the host name or address in a Host header, without port and brackets."""
    return (urlsplit(f"//{host}").hostname or "").rstrip(".").lower() if _is_plain(host) else ""


def _is_plain(host: str) -> bool:
    """Return whether `host` is only a host and a port, without characters that would begin another part of a URL."""
    return bool(host) and not set(host) & set("/\\?#@ ")
