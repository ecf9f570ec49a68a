"""A login at one broker by SASL: the exchange of tokens, and the session that it ends with.

SCRAM (RFC 5802, 7677) proves the password without sending it, and the broker proves that it knows
the user. PLAIN sends it, and OAUTHBEARER (RFC 7628) a signed token, so they are used within TLS only.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from odradek.errors import AuthenticationFailed, BrokerUnreachable
from odradek.transports.security import PLAIN, SCRAM, SaslCredentials
from odradek_protocol.rpc.v1 import auth_service_pb2 as pb

LOGIN_S_MAX: Final = 10.0
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 1_000_000  # what a stranger may make this process compute
_RENEW_AT: Final = 0.8  # of its lifetime
_EXCHANGE: Final = "odradek-sasl-exchange"
_MECHANISM: Final = "odradek-sasl-mechanism"
_TOKEN: Final = "odradek-sasl-token-bin"
Metadata = tuple[tuple[str, str | bytes], ...]
Authenticate = Callable[[Metadata], Awaitable[pb.AuthenticateResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What later calls to the same broker name, and until when (monotonic seconds)."""

    name: str
    renew_at_s: float

    def __repr__(self) -> str:
        return "Session(<hidden>)"


async def log_in(
    authenticate: Authenticate, endpoint: str, credentials: SaslCredentials
) -> Session:
    """Prove who we are; `authenticate` calls AuthService.Authenticate there, with the metadata it is given.

    Raises:
        AuthenticationFailed: the broker does not believe it, or is not who knows the user.
        BrokerUnreachable: it does not answer.
    """
    try:
        async with asyncio.timeout(LOGIN_S_MAX):
            if credentials.mechanism in SCRAM:
                return await _scram(authenticate, endpoint, credentials)
            first = ((_MECHANISM, credentials.mechanism), (_TOKEN, _only_token(credentials)))
            return _session(endpoint, await authenticate(first))
    except TimeoutError:
        raise BrokerUnreachable(endpoint, "it does not answer a login in time") from None


def _only_token(credentials: SaslCredentials) -> bytes:
    if credentials.mechanism == PLAIN:
        return f"\0{credentials.username}\0{credentials.password}".encode()
    assert credentials.token is not None, credentials
    return f"n,,\x01auth=Bearer {credentials.token()}\x01\x01".encode()


async def _scram(
    authenticate: Authenticate, endpoint: str, credentials: SaslCredentials
) -> Session:
    import scramp  # only for those who log in

    mechanism = credentials.mechanism
    try:
        client: Any = scramp.ScramClient([mechanism], credentials.username, credentials.password)
        first = client.get_client_first().encode()
        answer = await authenticate(((_MECHANISM, mechanism), (_TOKEN, first)))
        server_first = answer.token.decode()
        _check_iterations(endpoint, server_first)
        client.set_server_first(server_first)
        final = await asyncio.to_thread(client.get_client_final)
        answer = await authenticate(((_EXCHANGE, answer.exchange), (_TOKEN, final.encode())))
        client.set_server_final(answer.token.decode())
    except (scramp.ScramException, ValueError) as error:
        raise AuthenticationFailed(f"the login at {endpoint} went wrong: {error}") from None
    return _session(endpoint, answer)


def _check_iterations(endpoint: str, server_first: str) -> None:
    told = next((p[2:] for p in server_first.split(",") if p.startswith("i=")), "")
    with contextlib.suppress(ValueError):
        if ITERATIONS_MIN <= int(told) <= ITERATIONS_MAX:
            return
    raise AuthenticationFailed(
        f"the broker at {endpoint} asks for {told or 'no'} iterations; at least {ITERATIONS_MIN} are safe"
    )


def _session(endpoint: str, answer: pb.AuthenticateResponse) -> Session:
    if not answer.is_complete or not answer.session:
        raise AuthenticationFailed(f"the broker at {endpoint} gave no session")
    lifetime_s = max(answer.lifetime_ms, 0) / 1000
    return Session(name=answer.session, renew_at_s=time.monotonic() + lifetime_s * _RENEW_AT)
