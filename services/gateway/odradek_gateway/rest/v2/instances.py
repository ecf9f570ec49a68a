"""The consumer instances that this gateway serves. Requests for instances of other gateways are passed on.

A client may send a request to any gateway. If another gateway serves the instance, the request is passed on to it. If
that gateway does not respond, this gateway takes the instance over and continues at the committed offsets.

An instance is closed when a client deletes it, or when it got no request for `consumer.instance.timeout.ms`. The
gateway that serves the instance closes it. If that gateway has died, any other gateway deletes the registration after
twice that timeout. Thousands of instances may be open while only few are read. So an instance that was not read for
_READ_AHEAD_S discards the records that it has fetched ahead.
"""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from odradek.errors import OdradekError
from odradek_gateway.auth.callers import Caller, CallerAccesses, current_caller
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import (
    CONSUMER_INSTANCE_NOT_FOUND,
    INSTANCE_EXISTS,
    KAFKA_RETRIABLE_ERROR,
    RestError,
)
from odradek_gateway.rest.v2.instance import Instance, InstanceSpec
from odradek_gateway.rest.v2.instance_registry import InstanceRegistry, Registration, supervised
from odradek_gateway.rest.v2.other_gateways import (
    PASSED_ON,
    Elsewhere,
    OtherGateways,
    PassedRequest,
)
from odradek_runtime.logs import event_log

_SWEEP_S_MAX: Final = 5.0
_READ_AHEAD_S: Final = 5.0
_ENDS_AT_ONCE: Final = 16
_log = event_log(__name__)


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
        self._local: dict[tuple[str, str], Instance] = {}
        self._being_made: set[tuple[str, str]] = set()
        self._taking_over = asyncio.Lock()
        self.registry = InstanceRegistry(
            cluster.client, cluster.producer, url=cluster.url, on_failure=on_failure
        )
        self.other_gateways = OtherGateways(
            cluster, tls=tls, are_callers_known=accesses is not None
        )
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
        await self.other_gateways.close()

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
        await self.registry.catch_up_after_pause()
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
            passed_on = await self.other_gateways.pass_on(registration.owner, request)
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
