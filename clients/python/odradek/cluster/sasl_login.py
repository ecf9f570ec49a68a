"""SASL login at one broker: the exchange of tokens, and the resulting session.

With SCRAM (RFC 5802, 7677), the client proves that it knows the password without sending it, and the broker proves that
it has the user's credential. PLAIN sends the password, and OAUTHBEARER (RFC 7628) a signed token, so both need TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from odradek.cluster.background import in_thread
from odradek.cluster.security import PLAIN, SCRAM, SaslCredentials
from odradek.errors import AuthenticationFailed, BrokerUnreachable
from odradek_protocol.rpc.v1 import auth_service_pb2 as pb

LOGIN_S_MAX: Final = 10.0
ITERATIONS_MIN: Final = 4096
# Limits how much CPU time a malicious server can cost this process.
ITERATIONS_MAX: Final = 1_000_000
_RENEW_AT: Final = 0.8  # After this share of a session's lifetime, the client logs in again.
_EXCHANGE: Final = "odradek-sasl-exchange"
_MECHANISM: Final = "odradek-sasl-mechanism"
_TOKEN: Final = "odradek-sasl-token-bin"
Metadata = tuple[tuple[str, str | bytes], ...]
Authenticate = Callable[[Metadata], Awaitable[pb.AuthenticateResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A login at one broker. Later calls to the broker send `name`, the name of the session, instead of the
    credentials. At `renew_at_s`, in seconds of the monotonic clock, the client logs in again.
    """

    name: str
    renew_at_s: float

    def __repr__(self) -> str:
        return "Session(<hidden>)"


async def log_in(
    authenticate: Authenticate, endpoint: str, credentials: SaslCredentials
) -> Session:
    """Log in, and return the session. `authenticate` calls AuthService.Authenticate of the broker with the given
    metadata.

    Raises:
        AuthenticationFailed: the broker refuses the credentials, or does not prove that it has the user's credential.
        BrokerUnreachable: the broker does not respond.
    """
    try:
        async with asyncio.timeout(LOGIN_S_MAX):
            if credentials.mechanism in SCRAM:
                return await _scram(authenticate, endpoint, credentials)
            first = ((_MECHANISM, credentials.mechanism), (_TOKEN, _only_token(credentials)))
            return _session(endpoint, await authenticate(first))
    except TimeoutError:
        raise BrokerUnreachable(endpoint, "it did not respond to a login in time") from None


def _only_token(credentials: SaslCredentials) -> bytes:
    if credentials.mechanism == PLAIN:
        return f"\0{credentials.username}\0{credentials.password}".encode()
    assert credentials.token is not None, credentials
    return f"n,,\x01auth=Bearer {credentials.token()}\x01\x01".encode()


async def _scram(
    authenticate: Authenticate, endpoint: str, credentials: SaslCredentials
) -> Session:
    import scramp  # Imported here, because few programs log in.

    mechanism = credentials.mechanism
    try:
        client: Any = scramp.ScramClient([mechanism], credentials.username, credentials.password)
        first = client.get_client_first().encode()
        response = await authenticate(((_MECHANISM, mechanism), (_TOKEN, first)))
        server_first = response.token.decode()
        _check_iterations(endpoint, server_first)
        client.set_server_first(server_first)
        final = await in_thread(client.get_client_final)
        response = await authenticate(((_EXCHANGE, response.exchange), (_TOKEN, final.encode())))
        client.set_server_final(response.token.decode())
    except (scramp.ScramException, ValueError) as error:
        raise AuthenticationFailed(f"the login at {endpoint} failed: {error}") from None
    return _session(endpoint, response)


def _check_iterations(endpoint: str, server_first: str) -> None:
    iterations = next((p[2:] for p in server_first.split(",") if p.startswith("i=")), "")
    with contextlib.suppress(ValueError):
        if ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
            return
    raise AuthenticationFailed(
        f"the broker at {endpoint} requested {iterations or 'no'} SCRAM iterations; this client accepts"
        f" {ITERATIONS_MIN} to {ITERATIONS_MAX}"
    )


def _session(endpoint: str, response: pb.AuthenticateResponse) -> Session:
    if not response.is_complete or not response.session:
        raise AuthenticationFailed(
            f"the broker at {endpoint} accepted the login, but returned no session"
        )
    lifetime_s = max(response.lifetime_ms, 0) / 1000
    return Session(name=response.session, renew_at_s=time.monotonic() + lifetime_s * _RENEW_AT)
