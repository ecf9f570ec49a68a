"""ASGI middleware that authenticates the callers of requests; each request then acts with its caller's rights.

The middleware uses the first of these proofs that a request has. Proofs 2 and 3 count only if
`authentication.methods` contains their method:

  1. `odradek-on-behalf-of`, a header of another gateway that passes a request on. It is accepted only from a peer
     whose certificate has a principal in `delegation.principals`; any other peer is refused.
  2. `Authorization: Bearer` with a signed token, or `Authorization: Basic` with a name and password that a broker
     accepts. A request with a wrong header is refused even if its connection has a valid certificate.
  3. The client certificate of the connection.

A refused request gets status 401 (with WWW-Authenticate), 403, 429 or, if no broker can check a password, 503, with the
usual error body. Each refusal is written to the audit log. Requests for liveness and readiness need no authentication.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import unquote

from fastapi.responses import JSONResponse

from odradek.admin.access import AclFilter
from odradek.errors import AuthenticationFailed, AuthorizationFailed, OdradekError
from odradek_gateway.auth.basic_logins import BasicLogins
from odradek_gateway.auth.caller_limits import RateLimits, RequestShares
from odradek_gateway.auth.callers import ACCESS, HEALTH_PATHS, Caller, CallerAccesses, serving
from odradek_gateway.errors import error_body
from odradek_gateway.settings import BASIC, BEARER, MTLS, GatewaySettings
from odradek_runtime.jwt_tokens import TokenRefused, TokenVerifier
from odradek_runtime.logs import event_log
from odradek_runtime.tls import ANONYMOUS, principal_of_certificate

CERTIFICATE: Final = "odradek.certificate"
"""The key in a scope under which the HTTP server stores the client's certificate (DER)."""
ON_BEHALF_OF: Final = b"odradek-on-behalf-of"
ON_BEHALF_OF_HOST: Final = b"odradek-on-behalf-of-host"
_METRICS: Final = "/metrics"
_USERS_BEHIND_AN_ADDRESS: Final = 10
_NOTHING: Final = AclFilter(principal="-", resource_name="-")
"""An ACL filter that matches no entry. DescribeAcls with this filter checks that the caller has DESCRIBE on the
cluster, the right that /metrics requires.
"""
_REALM: Final = 'realm="odradek"'
_NAME_CHARACTERS_MAX: Final = 255
_PASSWORD_CHARACTERS_MAX: Final = 1024
Asgi = Callable[..., Awaitable[None]]
_audit = event_log("odradek_gateway.audit")


class Refused(Exception):
    """A request is refused with this status. `message` is sent to the caller, `reason` only to the audit log."""

    def __init__(
        self, status: int, error_code: int, message: str, *, reason: str, retry_after_s: int = 0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code
        self.message = message
        self.reason = reason
        self.retry_after_s = retry_after_s


class Authentication:
    """ASGI middleware that authenticates requests. `tokens` is None if bearer is not enabled, `logins` is None if
    basic is not enabled.
    """

    def __init__(
        self,
        app: Asgi,
        *,
        settings: GatewaySettings,
        accesses: CallerAccesses,
        tokens: TokenVerifier | None,
        logins: BasicLogins | None,
        shares: RequestShares,
    ) -> None:
        self._app = app
        self._shares = shares
        self._methods = frozenset(settings.authentication_methods)
        self._delegates = frozenset(settings.delegation_principals)
        self._accesses = accesses
        self._tokens = tokens
        self._logins = logins
        per_second = settings.requests_per_second_max
        self._requests = (
            RateLimits(per_second=per_second, burst=10 * per_second) if per_second else None
        )
        per_minute = settings.failed_logins_per_minute_max
        self._failures = RateLimits(per_second=per_minute / 60, burst=per_minute)
        """Failed logins. Wrong passwords are counted by address and user, so that users behind one proxy do not share a
        limit. Refused tokens are counted by address.
        """
        many = per_minute * _USERS_BEHIND_AN_ADDRESS
        self._failures_of_hosts = RateLimits(per_second=many / 60, burst=many)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Authenticate the request and pass it on, or refuse it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http" or scope["path"] in HEALTH_PATHS:
            await self._app(scope, receive, send)
            return
        host = str(scope["client"][0]) if scope.get("client") else ""
        try:
            caller = await self._identified(scope, host)
            self._bounded(caller)
            if (refusal := self._shares.identified(scope, caller.principal)) is not None:
                raise _too_many(refusal, 1)
        except Refused as refused:
            await self._refuse(refused, scope, host)(scope, receive, send)
            return
        async with self._accesses.lease(caller) as access:
            if scope["path"] == _METRICS:
                try:
                    await access.admin.describe_acls(_NOTHING)
                except AuthorizationFailed as error:
                    denied = Refused(403, 40301, str(error), reason=str(error))
                    await self._refuse(denied, scope, host)(scope, receive, send)
                    return
                except OdradekError as error:
                    await self._refuse(_no_broker(error), scope, host)(scope, receive, send)
                    return
            scope[ACCESS] = access
            with serving(caller):
                await self._app(scope, receive, send)

    async def _identified(self, scope: dict[str, Any], host: str) -> Caller:
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in (b"authorization", ON_BEHALF_OF, ON_BEHALF_OF_HOST):
                if name in headers:
                    raise _unauthorized(f"two {name.decode()} headers")
                headers[name] = value
        certificate = principal_of_certificate(scope.get(CERTIFICATE))
        if ON_BEHALF_OF in headers or ON_BEHALF_OF_HOST in headers:
            return self._passed_on(certificate, headers, host)
        if b"authorization" in headers:
            principal = await self._by_header(headers[b"authorization"].decode("latin-1"), host)
        elif MTLS in self._methods and certificate != ANONYMOUS:
            principal = certificate
        else:
            raise _unauthorized("no credentials")
        return Caller(principal=principal, host=host)

    def _passed_on(self, peer: str, headers: dict[bytes, bytes], host: str) -> Caller:
        if peer == ANONYMOUS or peer not in self._delegates:
            raise Refused(
                403,
                40301,
                "Forbidden",
                reason=f"{peer} may not act for other callers: it is not in delegation.principals",
            )
        principal = unquote(headers.get(ON_BEHALF_OF, b"").decode("latin-1"))
        if not principal.startswith("User:") or not 5 < len(principal) <= 1024:
            raise Refused(
                403,
                40301,
                "Forbidden",
                reason=f"{peer} passed a request on, but odradek-on-behalf-of names no valid caller (User:NAME)",
            )
        caller_host = headers.get(ON_BEHALF_OF_HOST, b"").decode("latin-1")
        return Caller(principal=principal, host=caller_host or host)

    async def _by_header(self, header: str, host: str) -> str:
        scheme, _, rest = header.partition(" ")
        try:
            if scheme.lower() == "bearer" and self._tokens is not None and BEARER in self._methods:
                return self._by_token(rest.strip(), host)
            if scheme.lower() == "basic" and self._logins is not None and BASIC in self._methods:
                return await self._by_password(rest.strip(), host)
        except (TokenRefused, AuthenticationFailed) as refused:
            raise _unauthorized(str(refused)) from None
        except OdradekError as error:
            raise _no_broker(error) from None
        raise _unauthorized(f"scheme {scheme[:20]!r} is not enabled in authentication.methods")

    def _by_token(self, token: str, host: str) -> str:
        """Return a token's principal.

        A bad token raises TokenRefused (401), or Refused (429) if its address has sent too many bad tokens.
        """
        assert self._tokens is not None
        try:
            return self._tokens.principal(token)
        except TokenRefused:
            if wait_s := self._failures.take(host):
                raise _too_many("too many refused tokens", wait_s) from None
            raise

    def _require_few_failures(self, host: str, user: str) -> None:
        """Raise Refused (429) if too many logins of this user or from this address failed.

        It is called before a password is checked with a broker. Tokens and cached logins are not affected.
        """
        wait_s = max(self._failures.wait_s(f"{host} {user}"), self._failures_of_hosts.wait_s(host))
        if wait_s:
            raise _too_many("too many failed logins", wait_s)

    async def _by_password(self, encoded: str, host: str) -> str:
        assert self._logins is not None
        try:
            text = base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, ValueError):
            raise AuthenticationFailed(
                "the Basic credentials are malformed: expected base64 of USER:PASSWORD"
            ) from None
        user, colon, password = text.partition(":")
        if (
            not colon
            or not 0 < len(user) <= _NAME_CHARACTERS_MAX
            or not 0 < len(password) <= _PASSWORD_CHARACTERS_MAX
        ):
            raise AuthenticationFailed(
                "the Basic credentials are malformed: expected base64 of USER:PASSWORD"
            )
        try:
            return await self._logins.principal(
                user, password, before_proof=lambda: self._require_few_failures(host, user)
            )
        except AuthenticationFailed:
            self._failures.take(f"{host} {user}")
            self._failures_of_hosts.take(host)
            raise

    def _bounded(self, caller: Caller) -> None:
        if self._requests is not None and (wait_s := self._requests.take(caller.principal)):
            raise _too_many(f"{caller.principal} sends too many requests", wait_s)

    def _refuse(self, refused: Refused, scope: dict[str, Any], host: str) -> JSONResponse:
        _audit.warning(
            "Refused request",
            status=refused.status,
            reason=refused.reason,
            host=host,
            request=f"{scope['method']} {scope['path'][:200]}",
        )
        response = JSONResponse(
            error_body(refused.status, refused.message, refused.error_code), refused.status
        )
        if refused.status == 401:
            for method, challenge in ((BEARER, "Bearer"), (BASIC, "Basic")):
                if method in self._methods:
                    charset = ', charset="UTF-8"' if method == BASIC else ""
                    response.headers.append("WWW-Authenticate", f"{challenge} {_REALM}{charset}")
            if "www-authenticate" not in response.headers:
                response.headers["WWW-Authenticate"] = f"Mutual {_REALM}"
        if refused.retry_after_s:
            response.headers["Retry-After"] = str(refused.retry_after_s)
        return response


def _unauthorized(reason: str) -> Refused:
    return Refused(401, 40101, "Unauthorized", reason=reason)


def _no_broker(error: OdradekError) -> Refused:
    return Refused(503, 50302, "No broker responds.", reason=str(error), retry_after_s=1)


def _too_many(reason: str, wait_s: int) -> Refused:
    return Refused(429, 42901, "Too Many Requests", reason=reason, retry_after_s=wait_s)
