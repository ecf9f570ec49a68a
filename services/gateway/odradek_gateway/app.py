"""The HTTP application: routes, errors, limits, headers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from odradek import errors
from odradek_gateway import monitoring, openapi
from odradek_gateway.auth.allowed_origins import AllowedOrigins
from odradek_gateway.auth.browser_rules import BrowserRules
from odradek_gateway.auth.caller_limits import RequestShares
from odradek_gateway.auth.callers import HEALTH_PATHS
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import (
    RestError,
    error_body,
    on_disconnect,
    on_http_exception,
    on_invalid,
    on_rest_error,
    on_timeout,
)
from odradek_gateway.monitoring import ClusterMetrics, RequestMetrics
from odradek_gateway.openapi import AllowedMethods, describe
from odradek_gateway.rest.v2 import consumer_offsets, consumer_records, consumers
from odradek_gateway.rest.v2 import topics as v2_topics
from odradek_gateway.rest.v2.instances import Instances
from odradek_gateway.rest.v3 import (
    access,
    clusters,
    configs,
    groups,
    partitions,
    records,
    topics,
    transactions,
)
from odradek_gateway.settings import GatewaySettings
from odradek_runtime.tls import CertificateExpiry

_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
_HTTPS_ONLY = (b"strict-transport-security", b"max-age=31536000")
_ALWAYS = (monitoring, openapi)
_V2 = (v2_topics, consumers, consumer_records, consumer_offsets)
# FastAPI takes the first route that matches a path. Routes for all items (`-`) must come before routes for one item, so
# configs come before topics.
_V3 = (clusters, configs, topics, partitions, groups, access, records, transactions)
_ESCAPED_SLASH = (
    "the path contains an escaped slash (%2F), so it would name another resource: names with a slash, which groups and"
    " their members may have, are not supported in paths; use the SDK or the command odradek for them"
)
Asgi = Callable[..., Awaitable[None]]


class Limits:
    """ASGI middleware that limits running requests, adds security and CORS headers to every response, and counts
    responses.

    As the outermost middleware it also removes a trailing slash from the path, so that all inner middlewares and the
    routes see the same path. It refuses a path with an escaped slash (%2F): routes match the decoded path, so
    `consumer-groups/a%2Flags` would be the lags of group a.
    """

    def __init__(
        self,
        app: Asgi,
        *,
        shares: RequestShares,
        metrics: RequestMetrics,
        origins: AllowedOrigins,
    ) -> None:
        self._app = app
        self._origins = origins
        self._shares = shares
        self._metrics = metrics

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Serve one request, or refuse it with 429 if its address has too many running requests."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _without_trailing_slash(scope)
        began_s, status = time.perf_counter(), 0

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    *_SECURITY_HEADERS,
                    *self._origins.response_headers(scope),
                ]
                if scope["scheme"] == "https":
                    message["headers"].append(_HTTPS_ONLY)
            await send(message)

        if b"%2f" in scope.get("raw_path", b"").lower():
            escaped = JSONResponse(error_body(404, _ESCAPED_SLASH), 404)
            await escaped(scope, receive, send_with_headers)
            self._metrics.responded(scope["method"], status, time.perf_counter() - began_s)
            return
        refusal = self._shares.begin(scope)
        if refusal is not None and scope["path"] not in HEALTH_PATHS:
            busy = JSONResponse(error_body(429, refusal, 42901), 429, headers={"Retry-After": "1"})
            await busy(scope, receive, send_with_headers)
            self._metrics.responded(scope["method"], status, time.perf_counter() - began_s)
            return
        self._metrics.at_work.inc()
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            # An internal error: uvicorn logs the exception, and the client gets status 500 without details.
            if not status:
                body = error_body(500, "internal error: see the gateway's log")
                await JSONResponse(body, 500)(scope, receive, send_with_headers)
            raise
        finally:
            self._shares.end(scope)
            self._metrics.at_work.dec()
            self._metrics.responded(scope["method"], status, time.perf_counter() - began_s)


def _without_trailing_slash(scope: dict[str, Any]) -> dict[str, Any]:
    """Return the scope without a slash at the end of its path."""
    raw_path = scope.get("raw_path") or scope["path"].encode()
    if raw_path == b"/" or not raw_path.endswith(b"/"):
        return scope
    return {**scope, "path": scope["path"].removesuffix("/"), "raw_path": raw_path[:-1]}


class _Application(FastAPI):
    """A FastAPI application whose openapi.json comes from `openapi.describe` instead of FastAPI."""

    def openapi(self) -> dict[str, Any]:
        """Return openapi.json as a dict. The first call creates the dict; later calls return the same one."""
        if self.openapi_schema is None:
            self.openapi_schema = describe(self)
        return self.openapi_schema


def create_app(
    settings: GatewaySettings,
    cluster: ClusterAccess,
    instances: Instances,
    authentication: Callable[..., Asgi] | None = None,
) -> FastAPI:
    """Create the application of a gateway process.

    `authentication` makes the middleware that authenticates callers; None: callers are not authenticated.
    """
    app = _Application(
        title="Odradek REST gateway",
        version="0.1.0",
        description="Topics, records, consumers and groups over HTTP: the shapes of Confluent's REST API v2 and v3.",
        openapi_url=None,  # openapi.openapi_json serves openapi.json
        # FastAPI's page loads scripts from another site, so openapi.docs replaces it.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # Limits removes a trailing slash
    )
    app.state.cluster = cluster
    app.state.instances = instances
    for kind in (RestError, errors.OdradekError):
        app.add_exception_handler(kind, on_rest_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.state.cluster_metrics = ClusterMetrics(cluster)
    app.state.request_metrics = RequestMetrics()
    app.state.certificate_expiry = CertificateExpiry(
        "odradek_gateway_",
        {
            "ssl.certificate.location": settings.ssl_certificate,
            "ssl.ca.location": settings.ssl_ca,
            "http.ssl.certificate.location": settings.http_ssl_certificate,
            "http.ssl.ca.location": settings.http_ssl_ca,
        },
    )
    app.state.shares = shares = RequestShares(
        requests_max=settings.requests_max,
        body_bytes_max=settings.body_bytes_max,
        bodies_bytes_max=settings.bodies_bytes_max,
    )
    if authentication is not None:
        app.add_middleware(authentication, shares=shares)
    origins = AllowedOrigins(settings.http_allowed_origins)
    app.add_middleware(
        BrowserRules,
        hosts=settings.known_hosts(),
        origins=origins,
    )
    app.add_middleware(Limits, shares=shares, metrics=app.state.request_metrics, origins=origins)
    app.add_exception_handler(ClientDisconnect, on_disconnect)
    app.add_exception_handler(TimeoutError, on_timeout)
    chosen = (*(_V2 if settings.v2_enable else ()), *(_V3 if settings.v3_enable else ()))
    routers = [module.router for module in (*_ALWAYS, *chosen)]
    # With `include_router`, the first request that reaches a router would create all its routes again, which takes
    # 30 ms of CPU, and every request would be matched twice.
    for router in routers:
        app.router.routes.extend(router.routes)
    app.state.allowed_methods = AllowedMethods(routers)
    return app
