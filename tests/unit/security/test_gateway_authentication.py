"""The gateway's middleware limits requests and failed logins, and refuses settings that cannot
work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from odradek.cluster.grpc_transport import GrpcTransport
from odradek.cluster.security import SaslCredentials
from odradek.errors import AuthenticationFailed, BrokersUnavailable
from odradek_gateway.auth.authentication import CERTIFICATE, Authentication
from odradek_gateway.auth.basic_logins import PROOFS_MAX, BasicLogins
from odradek_gateway.auth.caller_limits import RequestShares
from odradek_gateway.auth.callers import Caller, current_caller
from odradek_gateway.settings import GatewaySettings
from odradek_runtime.jwt_tokens import TokenRefused
from odradek_runtime.settings import SettingsError

TLS: dict[str, Any] = {"ssl_certificate": "c", "ssl_key": "k", "ssl_ca": "a"}
HTTPS: dict[str, Any] = {"http_ssl_certificate": "c", "http_ssl_key": "k", "http_ssl_ca": "a"}
JWT: dict[str, Any] = {"jwks": "j", "jwt_issuer": "i", "jwt_audience": "a"}


class Tokens:
    """A verifier that accepts the tokens `good-NAME`."""

    def principal(self, token: str) -> str:
        if not token.startswith("good-"):
            raise TokenRefused("it is not good")
        return f"User:{token.removeprefix('good-')}"


class Accesses:
    """Records the callers that request access to the cluster, and returns no access."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []

    @contextlib.asynccontextmanager
    async def lease(self, caller: Caller) -> AsyncIterator[object]:
        self.callers.append(caller)
        yield object()


SHARES = RequestShares(requests_max=2_000, body_bytes_max=1, bodies_bytes_max=1)


async def whoami(scope: Any, receive: Any, send: Any) -> None:
    body = f"{current_caller().principal} from {current_caller().host}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def client(certificate: bytes | None = None, **more: Any) -> httpx.AsyncClient:
    settings = GatewaySettings(authentication_methods=("bearer",), **TLS, **JWT, **more)
    guard = Authentication(
        whoami,
        settings=settings,
        accesses=Accesses(),  # type: ignore[arg-type]
        tokens=Tokens(),  # type: ignore[arg-type]
        logins=None,
        shares=SHARES,
    )

    return client_of(guard, certificate)


def client_of(guard: Authentication, certificate: bytes | None = None) -> httpx.AsyncClient:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if certificate is not None:
            scope[CERTIFICATE] = certificate
        await guard(scope, receive, send)

    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, client=("10.0.0.7", 4711)), base_url="http://gateway"
    )


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_the_caller_is_known_to_what_serves_the_request() -> None:
    async with client() as http:
        told = await http.get("/topics", headers=bearer("good-alice"))
        assert told.text == "User:alice from 10.0.0.7"
        assert current_caller().principal == ""


async def test_two_headers_are_none() -> None:
    async with client() as http:
        headers = [("Authorization", "Bearer good-a"), ("Authorization", "Bearer good-b")]
        assert (await http.get("/topics", headers=headers)).status_code == 401


async def test_a_method_that_is_off_is_not_offered() -> None:
    async with client() as http:
        told = await http.get("/topics", auth=("alice", "secret"))
        assert told.status_code == 401
        assert told.headers["www-authenticate"].startswith("Bearer")
        assert "Basic" not in told.headers["www-authenticate"]


async def test_who_asks_too_often_is_told_when_to_come_again() -> None:
    async with client(requests_per_second_max=1) as http:
        answers = [await http.get("/", headers=bearer("good-alice")) for _ in range(11)]
        assert [one.status_code for one in answers] == [200] * 10 + [429]
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert answers[-1].json()["error_code"] == 42901
        assert (await http.get("/", headers=bearer("good-bob"))).status_code == 200


async def test_guessing_tokens_ends_for_an_address_and_good_ones_still_come_in() -> None:
    async with client(failed_logins_per_minute_max=3) as http:
        told = [(await http.get("/", headers=bearer("bad"))).status_code for _ in range(4)]
        assert told == [401, 401, 401, 429]
        refused = await http.get("/", headers=bearer("bad"))
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert (await http.get("/", headers=bearer("good-alice"))).status_code == 200
        assert (await http.get("/livez")).status_code == 200


class OneUser:
    """Brokers that accept one password."""

    async def log_in(self, _endpoint: str, credentials: SaslCredentials) -> None:
        if (credentials.username, credentials.password) != ("alice", "right"):
            raise AuthenticationFailed("no")


async def test_failed_logins_of_one_user_do_not_shut_out_others_behind_the_same_address() -> None:
    limit = 5
    guard = Authentication(
        whoami,
        settings=GatewaySettings(
            authentication_methods=("basic",), failed_logins_per_minute_max=limit, **TLS
        ),
        accesses=Accesses(),  # type: ignore[arg-type]
        tokens=None,
        logins=BasicLogins(
            cast("GrpcTransport", OneUser()), ["b:1"], mechanism="SCRAM-SHA-512", cache_ms=60_000
        ),
        shares=SHARES,
    )
    async with client_of(guard) as http:
        guesses = [
            (await http.get("/", auth=("mallory", f"guess-{n}"))).status_code for n in range(8)
        ]
        assert guesses == [401] * limit + [429] * 3
        assert (await http.get("/", auth=("alice", "right"))).status_code == 200
        for n in range(200):  # until the address itself is out of patience
            last = await http.get("/", auth=(f"user-{n}", "guess"))
        assert last.status_code == 429
        assert (await http.get("/", auth=("alice", "right"))).status_code == 200, "proved before"


class Guessed:
    """Brokers that refuse every login, and count them."""

    def __init__(self) -> None:
        self.proofs = 0

    async def log_in(self, _endpoint: str, _credentials: object) -> None:
        self.proofs += 1
        for _ in range(10):
            await asyncio.sleep(0)
        raise AuthenticationFailed("no")


async def test_guesses_that_are_made_at_once_are_bounded_too() -> None:
    """Before, all guesses that arrived before the first one had failed were checked, thousands at a
    time.
    """
    limit, brokers = 5, Guessed()
    settings = GatewaySettings(
        authentication_methods=("basic",), failed_logins_per_minute_max=limit, **TLS
    )
    logins = BasicLogins(
        cast("GrpcTransport", brokers), ["b:1"], mechanism="SCRAM-SHA-512", cache_ms=5_000
    )
    guard = Authentication(
        whoami,
        settings=settings,
        accesses=Accesses(),  # type: ignore[arg-type]
        tokens=None,
        logins=logins,
        shares=SHARES,
    )
    async with client_of(guard) as http:
        asked = [http.get("/topics", auth=("alice", f"guess-{n}")) for n in range(300)]
        told = Counter(one.status_code for one in await asyncio.gather(*asked))
    assert brokers.proofs <= limit + 2 * PROOFS_MAX
    assert told == {401: brokers.proofs, 429: 300 - brokers.proofs}


class NoBroker(Accesses):
    """A cluster in which no broker is reachable to report the caller's rights."""

    @contextlib.asynccontextmanager
    async def lease(self, caller: Caller) -> AsyncIterator[object]:
        yield SimpleNamespace(admin=self)

    async def describe_acls(self, _: object) -> None:
        raise BrokersUnavailable(tried=["b:1"])


async def test_metrics_are_refused_retriably_while_no_broker_answers() -> None:
    guard = Authentication(
        whoami,
        settings=GatewaySettings(authentication_methods=("bearer",), **TLS, **JWT),
        accesses=NoBroker(),  # type: ignore[arg-type]
        tokens=Tokens(),  # type: ignore[arg-type]
        logins=None,
        shares=SHARES,
    )
    async with client_of(guard) as http:
        told = await http.get("/metrics", headers=bearer("good-alice"))
    assert (told.status_code, told.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"authentication_methods": ("kerberos",), **TLS}, "kerberos"),
        ({"authentication_methods": ("basic",)}, "ssl.certificate.location"),
        ({"authentication_methods": ("mtls",), **TLS, **HTTPS}, "http.ssl.client.auth"),
        ({"authentication_methods": ("bearer",), **TLS}, "jwt.jwks.location"),
        ({"authentication_methods": ("bearer",), **TLS, **JWT, "jwt_issuer": ""}, "jwt.issuer"),
        ({"authentication_methods": ("bearer",), **TLS, **JWT, "jwt_audience": ""}, "jwt.audience"),
        ({"jwt_algorithms": ("HS256",)}, "HS256"),
        ({"jwt_algorithms": ("none",)}, "none"),
        ({"http_ssl_certificate": "c"}, "set both"),
        ({"http_ssl_client_auth": "required"}, "http.ssl.ca.location"),
        ({"listen": "0.0.0.0:1"}, "http.ssl.certificate.location"),
        ({"listen": "0.0.0.0:1", **HTTPS}, "authentication.methods"),
    ],
)
def test_settings_that_cannot_work_are_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        GatewaySettings(**more).check(insecure=False)


def test_settings_that_work() -> None:
    GatewaySettings().check(insecure=False)
    GatewaySettings(listen="0.0.0.0:1").check(insecure=True)
    GatewaySettings(
        listen="0.0.0.0:1",
        authentication_methods=("bearer", "basic", "mtls"),
        http_ssl_client_auth="requested",
        **TLS,
        **HTTPS,
        **JWT,
    ).check(insecure=False)
