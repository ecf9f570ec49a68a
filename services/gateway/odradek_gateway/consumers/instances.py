"""The instances that this gateway serves, and the way to those that others serve.

A request may reach any gateway. If the instance is served elsewhere, the request is passed on; if that gateway does not
answer, this one takes the instance over and goes on at the committed offsets.

An instance ends when it is deleted, or when nobody has asked for it for `consumer.instance.timeout.ms`. Its gateway
sees to that; if that one is gone, any other does, after two such times. What an instance reads ahead is let go
when nobody has read for _READ_AHEAD_S: thousands of them are open, and few are read at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from urllib.parse import quote

import httpx

from odradek.errors import OdradekError
from odradek_gateway.auth.callers import Caller, CallerAccesses, current_caller, on_behalf_of
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.consumers.instance import Instance, InstanceSpec
from odradek_gateway.consumers.instance_registry import InstanceRegistry, Registration, supervised
from odradek_gateway.errors import (
    CONSUMER_INSTANCE_NOT_FOUND,
    INSTANCE_EXISTS,
    KAFKA_RETRIABLE_ERROR,
    RestError,
)
from odradek_runtime.logs import event_log

PASSED_ON: Final = "x-odradek-passed-on"
_CONNECT_S: Final = 1.0
_ANSWER_S: Final = 60.0  # beyond the longest poll
_SWEEP_S_MAX: Final = 5.0
_READ_AHEAD_S: Final = 5.0
_ENDS_AT_ONCE: Final = 16
_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another gateway's answer, to be given as it is."""

    status: int
    body: bytes
    media_type: str | None


class PassedRequest(NamedTuple):
    """A request as it came, to be passed on if need be. Path and query are as the client encoded them."""

    method: str
    raw_path: bytes
    query: bytes
    headers: Mapping[str, str]
    body: bytes
    while_connected: Callable[[], AbstractAsyncContextManager[None]]  # to wait for its sake
    at_stop: Elsewhere | None = None  # of a long poll: what it is answered when this gateway stops

    @property
    def path(self) -> str:
        """Path and query with nothing that a URL may not have."""
        path = quote(self.raw_path, safe="/%:@!$&'()*+,;=~")
        return f"{path}?{quote(self.query, safe='/%:@!$&*+,;=~?')}" if self.query else path


class Instances:
    """One a process."""

    def __init__(
        self,
        cluster: ClusterAccess,
        *,
        on_failure: Callable[[BaseException], object],
        accesses: CallerAccesses | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`accesses` are there where callers are asked who they are; `tls` is for the other gateways.

        `on_failure` hears of a task of ours that ended by a bug: instances cannot be served any more.
        """
        self._cluster = cluster
        self._accesses = accesses
        self._on_failure = on_failure
        self._has_certificate = tls is not None and accesses is not None
        self._local: dict[tuple[str, str], Instance] = {}
        self._being_made: set[tuple[str, str]] = set()
        self._taking_over = asyncio.Lock()
        self.registry = InstanceRegistry(
            cluster.client, cluster.producer, url=cluster.url, on_failure=on_failure
        )
        self._answer_s = cluster.settings.consumer_request_timeout_ms_max / 1000 + _ANSWER_S
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(self._answer_s, connect=_CONNECT_S),
            limits=httpx.Limits(  # long polls each keep one busy
                max_connections=cluster.settings.requests_max, max_keepalive_connections=100
            ),
            verify=tls or True,
        )
        name = cluster.settings.advertised_tls_name
        self._tls_name = {"sni_hostname": name} if name else {}
        self._sweeping: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many are served here."""
        return len(self._local)

    async def close(self) -> None:
        """Leave all groups, at their committed offsets; the instances stay registered."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        ends = (one.end() for one in self._local.values())
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if error is not None:
                _log.warning("An instance did not end in order", reason=repr(error))
        await self.registry.close()
        await self._http.aclose()

    async def create(self, spec: InstanceSpec) -> InstanceSpec:
        """Register and serve a new instance; a name is drawn if it has none."""
        await self._start()
        self._require_room()
        spec = replace(spec, principal=current_caller().principal)
        if not spec.name:
            spec = replace(spec, name=f"rest-consumer-{uuid.uuid4()}")
        key = (spec.group, spec.name)
        exists = RestError(409, INSTANCE_EXISTS, f"instance {spec.name} of {spec.group} exists")
        if key in self._being_made:
            raise exists
        self._being_made.add(key)
        try:
            if not await self.registry.add(spec):
                raise exists
            self._served_here(spec)
        finally:
            self._being_made.discard(key)
        return spec

    async def find(self, group: str, name: str, request: PassedRequest) -> Instance | Elsewhere:
        """The instance if it is served here, else the answer of whoever serves it. Raises RestError 40403."""
        await self._start()
        known = self.registry.find(group, name)
        if known is None:  # perhaps another gateway has only just made it
            await self.registry.catch_up()
            known = self.registry.find(group, name)
        if known is None:
            gone = self._local.pop((group, name), None)
            if gone is not None:
                await gone.end()
            raise RestError(
                404, CONSUMER_INSTANCE_NOT_FOUND, f"there is no consumer instance {name} in {group}"
            )
        if known.spec.principal != current_caller().principal:
            raise RestError(403, 40301, f"consumer instance {name} in {group} is somebody else's")
        local = self._local.get((group, name))
        if known.owner == self._cluster.url and local is not None:
            local.used()
            return local
        if local is not None:  # another gateway thought that we were dead
            del self._local[(group, name)]
            await local.end()
        if known.owner != self._cluster.url:
            if (
                PASSED_ON in request.headers
            ):  # who sent it here did not know yet; it must not go in circles
                raise in_motion()
            passed_on = await self._pass_on(known.owner, request)
            if passed_on is not None:
                return passed_on
        return await self._take_over(known)

    async def _start(self) -> None:
        await self.registry.start()
        if self._sweeping is None:
            self._sweeping = supervised(self._sweep(), "idle consumer instances", self._on_failure)

    def _require_room(self) -> None:
        if len(self._local) >= self._cluster.settings.consumer_instances_max:
            raise RestError(429, 42901, "this gateway serves as many instances as it may")

    def _served_here(self, spec: InstanceSpec) -> Instance:
        """The one there is, if a request came between the registration and now."""
        key = (spec.group, spec.name)
        if key not in self._local:
            self._local[key] = self._instance(spec)
        return self._local[key]

    def _instance(self, spec: InstanceSpec) -> Instance:
        """Acting as whom it belongs to."""
        prefetch_bytes_max = self._cluster.settings.consumer_prefetch_bytes_max
        if self._accesses is None:
            return Instance(self._cluster.client, spec, prefetch_bytes_max)
        access = self._accesses.of(Caller(principal=spec.principal, host=current_caller().host))
        instance = Instance(access.client, spec, prefetch_bytes_max)
        access.users.add(instance)
        return instance

    async def _pass_on(self, owner: str, request: PassedRequest) -> Elsewhere | None:
        """Its answer; None when it cannot be reached."""
        headers = {
            key: value
            for key, value in request.headers.items()
            if key.lower() in ("content-type", "accept")
        }
        if self._has_certificate:
            # Our certificate vouches for the caller, whose secrets go nowhere: not even a registry
            # that somebody wrote into can have them sent to an address of his.
            if not owner.startswith("https://"):
                _log.warning("A gateway without TLS is not asked", owner=owner)
                return None
            headers |= on_behalf_of(current_caller())
        elif "authorization" in request.headers:
            headers["authorization"] = request.headers["authorization"]
        try:
            async with self._while_asked(request):
                told = await self._http.request(
                    request.method,
                    f"{owner}{request.path}",
                    headers={**headers, PASSED_ON: "1"},
                    content=request.body,
                    extensions=self._tls_name,
                )
        except httpx.PoolTimeout:  # says nothing of the other gateway
            raise RestError(503, KAFKA_RETRIABLE_ERROR, "too many requests are passed on") from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            _log.warning("A gateway does not answer", owner=owner, reason=repr(error))
            return None
        except TimeoutError:
            if request.at_stop is None or not self._cluster.waits.is_stopping:
                raise
            return request.at_stop  # the other gateway sees that we are gone, and keeps the records
        return Elsewhere(told.status_code, told.content, told.headers.get("content-type"))

    @contextlib.asynccontextmanager
    async def _while_asked(self, request: PassedRequest) -> AsyncIterator[None]:
        """Within it another gateway is waited for: as long as the client is there and, in a long poll, we serve."""
        async with contextlib.AsyncExitStack() as stack:
            if request.at_stop is not None:
                await stack.enter_async_context(self._cluster.waits.long_poll(2 * self._answer_s))
            await stack.enter_async_context(request.while_connected())
            yield

    async def _take_over(self, known: Registration) -> Instance:
        """From an owner that was found gone: from that one, not from who took it over meanwhile."""
        group, name = known.spec.group, known.spec.name
        async with self._taking_over:
            local = self._local.get((group, name))
            if local is not None:
                return local
            present = self.registry.find(group, name)
            if present is None:
                raise RestError(404, CONSUMER_INSTANCE_NOT_FOUND, f"no instance {name} in {group}")
            if present.number != known.number:
                raise in_motion()
            self._require_room()
            if not await self.registry.take_over(present):
                raise in_motion()
            _log.info("Took a consumer instance over", group=group, instance=name)
            return self._served_here(present.spec)

    async def use(self, instance: Instance, spec: InstanceSpec) -> None:
        """A new subscription or assignment, known to all gateways."""
        await instance.use(spec)
        if not await self.registry.update(spec):
            raise in_motion()

    async def remove(self, instance: Instance) -> None:
        """Close it for good. The caller has its lock."""
        spec = instance.spec
        await instance.end()
        try:
            await self.registry.forget(spec.group, spec.name)
        finally:
            self._no_longer_here(instance)

    def _no_longer_here(self, instance: Instance) -> None:
        key = (instance.spec.group, instance.spec.name)
        if self._local.get(key) is instance:
            del self._local[key]

    async def _sweep(self) -> None:
        """End what nobody asked for in a long time, and keep alive in the registry what somebody did."""
        limit_s = self._cluster.settings.consumer_instance_timeout_ms / 1000
        while True:
            await asyncio.sleep(min(_SWEEP_S_MAX, limit_s / 4))
            try:
                await self._sweep_once(limit_s)
            except (OdradekError, RestError, TimeoutError) as error:
                _log.warning("Could not look after the instances", reason=repr(error))

    async def _sweep_once(self, limit_s: float) -> None:
        for spec in self.registry.unheard_of(limit_s / 2):  # first: to end others may take its time
            if (spec.group, spec.name) in self._local:
                await self.registry.update(spec)
        over = []
        for instance in self._local.values():
            if instance.lock.locked():  # somebody uses it at this moment
                continue
            if self._is_over(instance, limit_s):
                over.append(instance)
            elif instance.idle_s > _READ_AHEAD_S:
                instance.rest()
        room = asyncio.Semaphore(_ENDS_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for instance in over:
                tasks.create_task(self._end(instance, limit_s, room))
        for spec in self.registry.unheard_of(2 * limit_s):
            if (spec.group, spec.name) not in self._local:
                _log.info("An instance of a gone gateway", group=spec.group, instance=spec.name)
                await self.registry.forget(spec.group, spec.name)

    def _is_over(self, instance: Instance, limit_s: float) -> bool:
        return instance.idle_s > limit_s or not self._is_ours(instance.spec)

    def _is_ours(self, spec: InstanceSpec) -> bool:
        known = self.registry.find(spec.group, spec.name)
        return known is not None and known.owner == self._cluster.url

    async def _end(self, instance: Instance, limit_s: float, room: asyncio.Semaphore) -> None:
        async with room, instance.lock:
            if not self._is_over(instance, limit_s):  # somebody was faster
                return
            try:
                if self._is_ours(instance.spec):
                    await self.remove(instance)
                else:
                    await instance.end()
                    self._no_longer_here(instance)
            except (OdradekError, RestError, TimeoutError) as error:
                _log.warning("An instance did not end in order", reason=repr(error))


def in_motion() -> RestError:
    """The answer to who came while the instance went from one gateway to another."""
    return RestError(503, KAFKA_RETRIABLE_ERROR, "another gateway has just taken the instance over")
