"""Logins by name and password (HTTP basic authentication). The gateway checks a password by a SCRAM login at a broker;
it stores neither passwords nor hashes of passwords.

A SCRAM login (called a *proof* here) costs thousands of hash iterations and two messages, so a successful proof is
cached for a short time. The key of the cache is an HMAC of name and password, with a secret of this process.
Concurrent requests with the same name and password wait for one proof. At most PROOFS_MAX proofs run at once.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from odradek.cluster.grpc_transport import GrpcTransport
from odradek.cluster.security import SaslCredentials
from odradek.errors import AuthenticationFailed, BrokersUnavailable, InvalidConfig, OdradekError

PROOFS_MAX: Final = 8
CACHED_MAX: Final = 10_000
_KEY: Final = os.urandom(32)


class BasicLogins:
    """Checks passwords by logins at brokers, and caches successful logins. Used only on the event loop.

    `endpoints` are addresses of brokers. Any broker can check any user.
    """

    def __init__(
        self,
        transport: GrpcTransport,
        endpoints: Sequence[str],
        *,
        mechanism: str,
        cache_ms: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._endpoints = tuple(endpoints)
        self._mechanism = mechanism
        self._cache_s = cache_ms / 1000
        self._clock_s = clock_s
        # The HMAC of each verified login -> the time when it expires. The items are in the order of these times.
        self._proved: OrderedDict[bytes, float] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(PROOFS_MAX)
        self._next = 0

    async def principal(
        self, user: str, password: str, *, before_proof: Callable[[], None] = lambda: None
    ) -> str:
        """Return the principal `User:NAME` if the password is right. `before_proof` is called before a SCRAM login
        starts, and may raise an error to prevent that login.

        Raises:
            AuthenticationFailed: the brokers refuse the password.
            BrokersUnavailable: no broker responds.
        """
        pair = hmac.digest(_KEY, f"{len(user)}:{user}{password}".encode(), "sha256")
        now_s = self._clock_s()
        until_s = self._proved.get(pair)
        if until_s is None or now_s >= until_s:
            await self._proof(pair, user, password, before_proof)
        return f"User:{user}"

    async def _proof(
        self, pair: bytes, user: str, password: str, before_proof: Callable[[], None]
    ) -> None:
        task = self._under_way.get(pair)
        if task is None:
            before_proof()
            proving = self._prove(user, password, before_proof)
            task = asyncio.create_task(proving, name="basic login")
            self._under_way[pair] = task
            task.add_done_callback(lambda done: self._finished(pair, done))
        # Several requests may wait for the same proof, so the cancellation of one request must not cancel the proof.
        await asyncio.shield(task)

    def _finished(self, pair: bytes, done: asyncio.Task[None]) -> None:
        del self._under_way[pair]
        if done.cancelled() or done.exception() is not None:
            self._proved.pop(pair, None)
            return
        now_s = self._clock_s()
        self._proved[pair] = now_s + self._cache_s
        self._proved.move_to_end(pair)
        while self._proved:
            oldest = next(iter(self._proved))
            if len(self._proved) <= CACHED_MAX and self._proved[oldest] > now_s:
                break
            del self._proved[oldest]

    async def _prove(self, user: str, password: str, before_proof: Callable[[], None]) -> None:
        try:
            credentials = SaslCredentials(
                username=user, password=password, mechanism=self._mechanism
            )
        except InvalidConfig as error:
            raise AuthenticationFailed(str(error)) from None
        last: OdradekError | None = None
        async with self._room:
            # Check again: other proofs of the same user may have failed while this one waited for the semaphore.
            before_proof()
            for _ in self._endpoints:
                self._next = (self._next + 1) % len(self._endpoints)
                endpoint = self._endpoints[self._next]
                try:
                    await self._transport.log_in(endpoint, credentials)
                    return
                except AuthenticationFailed:
                    raise
                except OdradekError as error:
                    last = error
        raise BrokersUnavailable(tried=list(self._endpoints), last_error=last, waited_s=0)
