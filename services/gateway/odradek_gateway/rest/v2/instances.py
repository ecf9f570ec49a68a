"""The consumer instances that this gateway serves. Requests for instances of other gateways are passed on.

A client may send a request to any gateway. If another gateway serves the instance, the request is passed on to it. If
that gateway does not respond, this gateway takes the instance over and continues at the committed offsets.

A healthy gateway may take long to respond: a commit waits for the poll that uses the instance, or for brokers. So a
request that waits for _PROBE_AFTER_S does not lead to a takeover, but the other gateway's liveness is then checked
repeatedly. A gateway that hangs accepts connections, but does not respond to the check.

An instance is closed when a client deletes it, or when it got no request for `consumer.instance.timeout.ms`. The
gateway that serves the instance closes it. If that gateway has died, any other gateway deletes the registration after
twice that timeout. Thousands of instances may be open while only few are read. So an instance that was not read for
_READ_AHEAD_S discards the records that it has fetched ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from odradek.errors import OdradekError
from odradek_gateway.auth.callers import Caller, CallerAccesses, current_caller, on_behalf_of
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import (
    CONSUMER_INSTANCE_NOT_FOUND,
    INSTANCE_EXISTS,
    KAFKA_RETRIABLE_ERROR,
    RestError,
)
from odradek_gateway.rest.v2.instance import Instance, InstanceSpec
from odradek_gateway.rest.v2.instance_registry import InstanceRegistry, Registration, supervised
from odradek_runtime.logs import event_log

if TYPE_CHECKING:
    import httpx

PASSED_ON: Final = "x-odradek-passed-on"
_CONNECT_S: Final = 1.0
_RESPONSE_S: Final = 60.0  # time for a response, in addition to the longest poll
_PROBE_AFTER_S: Final = 10.0  # without a response
_PROBE_S: Final = 10.0
_SWEEP_S_MAX: Final = 5.0
_READ_AHEAD_S: Final = 5.0
_ENDS_AT_ONCE: Final = 16
_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The response of another gateway, which serves the instance. It is returned to the client unchanged."""

    status: int
    body: bytes
    media_type: str | None


class PassedRequest(NamedTuple):
    """A request that may be passed on to another gateway. Path and query have the encoding that the client sent.

    `while_connected` makes a context manager that cancels its block when the client disconnects. `at_stop` is the
    response to a long poll if this gateway stops while the other gateway handles the request; None for other requests.
    """

    method: str
    raw_path: bytes
    query: bytes
    headers: Mapping[str, str]
    body: bytes
    while_connected: Callable[[], AbstractAsyncContextManager[None]]
    at_stop: Elsewhere | None = None

    @property
    def path(self) -> str:
        """The path with the query. Characters that a URL may not contain are percent-encoded."""
        path = quote(self.raw_path, safe="/%:@!$&'()*+,;=~")
        return f"{path}?{quote(self.query, safe='/%:@!$&*+,;=~?')}" if self.query else path


class Instances:
    """The instances that this gateway serves, and the registry of the instances of all gateways."""

    def __init__(
        self,
        cluster: ClusterAccess,
        *,
        on_failure: Callable[[BaseException], object],
        accesses: CallerAccesses | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`accesses` is None if callers are not authenticated. `tls` is for requests to other gateways.

        `on_failure` is called if an internal error ends a background task, without which no instance can be served.
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
        self._response_s = cluster.settings.consumer_request_timeout_ms_max / 1000 + _RESPONSE_S
        self._tls = tls
        name = cluster.settings.advertised_tls_name
        self._tls_name = {"sni_hostname": name} if name else {}
        self._sweeping: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """The number of instances that this gateway serves."""
        return len(self._local)

    async def close(self) -> None:
        """Commit the offsets of instances that commit automatically, and leave all groups.

        The instances stay registered, so that other gateways can take them over.
        """
        if self._sweeping is not None:
            self._sweeping.cancel()
        ends = (
            instance.end(is_moved=not self._is_ours(instance.spec))
            for instance in self._local.values()
        )
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if error is not None:
                _log.warning("Failed to close a consumer instance", reason=repr(error))
        await self.registry.close()
        if "_http" in self.__dict__:
            await self._http.aclose()

    async def create(self, spec: InstanceSpec) -> InstanceSpec:
        """Register and serve a new instance, and return its spec. An instance without a name gets a random name.

        Raises:
            RestError: 409 if the group already has an instance with this name, 429 if this gateway serves
            `consumer.instances.max` instances.
        """
        await self._start()
        self._require_room()
        spec = replace(spec, principal=current_caller().principal, member_id=str(uuid.uuid4()))
        if not spec.name:
            spec = replace(spec, name=f"rest-consumer-{uuid.uuid4()}")
        key = (spec.group, spec.name)
        exists = RestError(
            409,
            INSTANCE_EXISTS,
            f"consumer instance {spec.name} in group {spec.group} exists already",
        )
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
        """Return the instance if this gateway serves it. Otherwise pass the request on to the gateway that serves the
        instance, and return its response; if that gateway does not respond, take the instance over and return it.

        Raises:
            RestError: 40403 if there is no such instance, 403 if it belongs to another caller, 50003 while it moves
            to another gateway.
        """
        await self._start()
        registration = self.registry.find(group, name)
        if registration is None:  # another gateway may have created the instance a moment ago
            await self.registry.catch_up()
            registration = self.registry.find(group, name)
        if registration is None:
            gone = self._local.pop((group, name), None)
            if gone is not None:
                await gone.end(is_moved=True)
            raise RestError(
                404,
                CONSUMER_INSTANCE_NOT_FOUND,
                f"there is no consumer instance {name} in group {group}",
            )
        if registration.spec.principal != current_caller().principal:
            raise RestError(
                403, 40301, f"consumer instance {name} in group {group} belongs to another caller"
            )
        local = self._local.get((group, name))
        if registration.owner == self._cluster.url and local is not None:
            local.used()
            return local
        # The instance is still open in this gateway, but another gateway did not get a response from this one and has
        # taken the instance over.
        if local is not None:
            del self._local[(group, name)]
            await local.end(is_moved=True)
        if registration.owner != self._cluster.url:
            # The gateway that passed the request on has read less of the registry than this one. Passing the request
            # on again could cause a loop.
            if PASSED_ON in request.headers:
                raise in_motion()
            passed_on = await self._pass_on(registration.owner, request)
            if passed_on is not None:
                return passed_on
        return await self._take_over(registration)

    async def _start(self) -> None:
        await self.registry.start()
        if self._sweeping is None:
            self._sweeping = supervised(self._sweep(), "idle consumer instances", self._on_failure)

    def _require_room(self) -> None:
        if len(self._local) >= self._cluster.settings.consumer_instances_max:
            raise RestError(
                429,
                42901,
                "this gateway already serves as many instances as consumer.instances.max allows",
            )

    def _served_here(self, spec: InstanceSpec) -> Instance:
        """Return the local object of a registered instance, and create it if there is none. A request that arrived
        right after the registration may already have created it.
        """
        key = (spec.group, spec.name)
        if key not in self._local:
            self._local[key] = self._instance(spec)
        return self._local[key]

    def _instance(self, spec: InstanceSpec) -> Instance:
        """Create an `Instance` object that acts on behalf of the instance's owner."""
        prefetch_bytes_max = self._cluster.settings.consumer_prefetch_bytes_max
        if self._accesses is None:
            return Instance(self._cluster.client, spec, prefetch_bytes_max)
        access = self._accesses.of(Caller(principal=spec.principal, host=current_caller().host))
        instance = Instance(access.client, spec, prefetch_bytes_max)
        access.users.add(instance)
        return instance

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        # httpx is imported late, because httpx and its CA certificates take 0.1 s to load, and a single gateway never
        # uses them.
        import httpx

        return httpx.AsyncClient(
            timeout=httpx.Timeout(self._response_s, connect=_CONNECT_S),
            limits=httpx.Limits(  # each long poll uses one connection
                max_connections=self._cluster.settings.requests_max, max_keepalive_connections=100
            ),
            verify=self._tls or True,
        )

    async def _pass_on(self, owner: str, request: PassedRequest) -> Elsewhere | None:
        """Pass the request to the gateway `owner` and return its response, or None if it cannot be reached."""
        import httpx  # see `_http`

        headers = {
            key: value
            for key, value in request.headers.items()
            if key.lower() in ("content-type", "accept")
        }
        if self._has_certificate:
            # This gateway's certificate proves that the caller was authenticated. So the caller's own credentials are
            # not sent: an attacker who writes into the registry could otherwise have them sent to any address.
            if not owner.startswith("https://"):
                _log.warning(
                    "Request not passed on to the gateway that owns the instance, because its URL is not https",
                    owner=owner,
                )
                return None
            headers |= on_behalf_of(current_caller())
        # Without TLS, gateways cannot prove to each other who the caller is, so the other gateway must authenticate the
        # caller itself. SECURITY.md says who may write into the registry.
        elif "authorization" in request.headers:
            headers["authorization"] = request.headers["authorization"]
        try:
            async with self._while_waiting(request):
                response = await self._response_of(owner, request, {**headers, PASSED_ON: "1"})
        # This gateway has too many connections to other gateways. The other gateway may be healthy, so its instance is
        # not taken over.
        except httpx.PoolTimeout:
            raise RestError(
                503,
                KAFKA_RETRIABLE_ERROR,
                "this gateway is passing too many requests on to other gateways: try again later",
            ) from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            _log.warning(
                "Failed to pass a request on to another gateway", owner=owner, reason=repr(error)
            )
            return None
        except TimeoutError:
            if request.at_stop is None or not self._cluster.waits.is_stopping:
                raise
            # The other gateway notices that the connection was closed, and returns the records to the next request.
            return request.at_stop
        content_type = response.headers.get("content-type")
        return Elsewhere(response.status_code, response.content, content_type)

    async def _response_of(
        self, owner: str, request: PassedRequest, headers: dict[str, str]
    ) -> httpx.Response:
        """Send the request to the gateway `owner` and return its response.

        Raises:
            httpx.TransportError: the gateway cannot be reached, or it is not alive.
        """
        sending = asyncio.create_task(
            self._http.request(
                request.method,
                f"{owner}{request.path}",
                headers=headers,
                content=request.body,
                extensions=self._tls_name,
            )
        )
        try:
            while not (await asyncio.wait({sending}, timeout=_PROBE_AFTER_S))[0]:
                await self._require_alive(owner, sending)
            return sending.result()
        finally:
            if not sending.done():
                sending.cancel()
                await asyncio.wait({sending})

    async def _require_alive(self, owner: str, sending: asyncio.Task[httpx.Response]) -> None:
        """Raise httpx.TransportError if the gateway `owner` responds neither to a check of its liveness nor to the
        request.
        """
        import httpx  # see `_http`

        limits = httpx.Timeout(_PROBE_S, connect=_CONNECT_S)
        try:
            await self._http.get(f"{owner}/livez", timeout=limits, extensions=self._tls_name)
        except httpx.PoolTimeout:
            return  # this gateway has too many connections; that says nothing about the other gateway
        except httpx.TransportError:
            if not sending.done():
                raise

    @contextlib.asynccontextmanager
    async def _while_waiting(self, request: PassedRequest) -> AsyncIterator[None]:
        """Bound the wait for another gateway's response in an `async with` block. The wait ends when the client
        disconnects or, for a long poll, when this gateway stops.
        """
        async with contextlib.AsyncExitStack() as stack:
            if request.at_stop is not None:
                await stack.enter_async_context(self._cluster.waits.long_poll(2 * self._response_s))
            await stack.enter_async_context(request.while_connected())
            yield

    async def _take_over(self, registration: Registration) -> Instance:
        """Take the instance over from a gateway that does not respond, and return it.

        Raises:
            RestError: 50003 if another gateway took the instance over first, 40403 if it was deleted, 429 if this
            gateway serves too many instances.
        """
        group, name = registration.spec.group, registration.spec.name
        async with self._taking_over:
            local = self._local.get((group, name))
            if local is not None:
                return local
            present = self.registry.find(group, name)
            if present is None:
                raise RestError(
                    404,
                    CONSUMER_INSTANCE_NOT_FOUND,
                    f"there is no consumer instance {name} in group {group}",
                )
            if present.number != registration.number:
                raise in_motion()
            self._require_room()
            # Use a new member id: the former gateway may still be alive, and then it leaves the group with the old id.
            spec = replace(present.spec, member_id=str(uuid.uuid4()))
            if not await self.registry.take_over(present, spec):
                raise in_motion()
            _log.info(
                "Took over a consumer instance from a gateway that does not respond",
                group=group,
                instance=name,
            )
            instance = self._served_here(spec)
            if present.spec.member_id and (spec.topics or spec.pattern):
                await instance.dismiss(present.spec.member_id)
            return instance

    async def use(self, instance: Instance, spec: InstanceSpec) -> None:
        """Replace the instance's subscription or assignment, and write it into the registry."""
        await instance.use(spec)
        if not await self.registry.update(spec):
            raise in_motion()

    async def remove(self, instance: Instance) -> None:
        """Close the instance and delete its registration. The caller holds the instance's lock."""
        spec = instance.spec
        await instance.end()
        try:
            await self.registry.forget(spec.group, spec.name)
        finally:
            self._drop_local(instance)

    def _drop_local(self, instance: Instance) -> None:
        key = (instance.spec.group, instance.spec.name)
        if self._local.get(key) is instance:
            del self._local[key]

    async def _sweep(self) -> None:
        """Close unused instances, and write the registrations of the other instances again, until cancelled."""
        limit_s = self._cluster.settings.consumer_instance_timeout_ms / 1000
        while True:
            await asyncio.sleep(min(_SWEEP_S_MAX, limit_s / 4))
            try:
                await self._sweep_once(limit_s)
            except (OdradekError, RestError, TimeoutError) as error:
                _log.warning(
                    "Failed to close unused consumer instances or to renew registrations; trying again",
                    reason=repr(error),
                )

    async def _sweep_once(self, limit_s: float) -> None:
        # The registrations are written first, because closing instances may take long.
        for spec in self.registry.unheard_of(limit_s / 2):
            if (spec.group, spec.name) in self._local:
                await self.registry.update(spec)
        over = []
        for instance in self._local.values():
            if instance.lock.locked():  # a request is using the instance
                continue
            if self._is_over(instance, limit_s):
                over.append(instance)
            elif instance.idle_s > _READ_AHEAD_S:
                instance.rest()
        ending = asyncio.Semaphore(_ENDS_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for instance in over:
                tasks.create_task(self._end(instance, limit_s, ending))
        for spec in self.registry.unheard_of(2 * limit_s):
            if (spec.group, spec.name) not in self._local:
                await self.registry.forget(spec.group, spec.name)
                _log.info(
                    "Deleted a consumer instance whose gateway no longer renews its registration",
                    group=spec.group,
                    instance=spec.name,
                )

    def _is_over(self, instance: Instance, limit_s: float) -> bool:
        return instance.idle_s > limit_s or not self._is_ours(instance.spec)

    def _is_ours(self, spec: InstanceSpec) -> bool:
        registration = self.registry.find(spec.group, spec.name)
        return registration is not None and registration.owner == self._cluster.url

    async def _end(self, instance: Instance, limit_s: float, ending: asyncio.Semaphore) -> None:
        async with ending, instance.lock:
            if not self._is_over(instance, limit_s):  # a request used the instance in the meantime
                return
            try:
                if self._is_ours(instance.spec):
                    await self.remove(instance)
                else:
                    await instance.end(is_moved=True)
                    self._drop_local(instance)
            except (OdradekError, RestError, TimeoutError) as error:
                _log.warning(
                    "Failed to close a consumer instance that was unused or taken over by another gateway",
                    group=instance.spec.group,
                    instance=instance.spec.name,
                    reason=repr(error),
                )


def in_motion() -> RestError:
    """Return the error for a request that arrived while its instance moved to another gateway."""
    return RestError(503, KAFKA_RETRIABLE_ERROR, "another gateway has just taken the instance over")
