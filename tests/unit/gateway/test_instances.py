"""The consumer instances of one gateway: when unused instances end, and how requests are forwarded
to other gateways.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest

from odradek.errors import BrokersUnavailable
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import RestError
from odradek_gateway.rest.v2.instance import Instance, InstanceSpec
from odradek_gateway.rest.v2.instance_registry import InstanceRegistry, Registration
from odradek_gateway.rest.v2.instances import Instances
from odradek_gateway.rest.v2.other_gateways import Elsewhere, OtherGateways, PassedRequest
from odradek_gateway.settings import GatewaySettings

DEADLINE_S, LIMIT_S = 20.0, 300.0
HEARD_OF_S = LIMIT_S  # ago, all of them
HERE, THERE = "http://here:8082", "http://there:8082"


@dataclass
class Registry:
    """The registrations that all gateways know, without the topic behind them."""

    known: dict[tuple[str, str], Registration] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    forgot: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        pass

    async def catch_up(self) -> None:
        pass

    async def catch_up_after_pause(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def register(self, spec: InstanceSpec, owner: str = HERE) -> None:
        told = Registration(spec=spec, owner=owner, number=1, heard_at_s=0.0)
        self.known[(spec.group, spec.name)] = told

    def find(self, group: str, name: str) -> Registration | None:
        return self.known.get((group, name))

    def unheard_of(self, longer_than_s: float) -> list[InstanceSpec]:
        return [one.spec for one in self.known.values() if longer_than_s < HEARD_OF_S]

    async def update(self, spec: InstanceSpec) -> bool:
        self.log.append(("update", spec.name))
        return True

    async def take_over(self, present: Registration, spec: InstanceSpec) -> bool:
        self.log.append(("take over", spec.name))
        self.register(spec)
        return present.spec.name == spec.name

    async def forget(self, group: str, name: str) -> None:
        if name in self.failing:
            raise BrokersUnavailable(tried=["b"])
        self.log.append(("forget", name))
        del self.known[(group, name)]
        self.forgot.set()


class Idle(Instance):
    """An instance that was not used for `age_s`."""

    age_s: float = 0.0
    ending: Callable[[], Any] | None = None
    rests: int = 0
    was_moved: bool | None = None

    @property
    def idle_s(self) -> float:
        return self.age_s

    def rest(self) -> None:
        self.rests += 1

    async def end(self, *, is_moved: bool = False) -> None:
        self.was_moved = is_moved
        if self.ending is not None:
            await self.ending()


def instances_of(*aged: tuple[str, float]) -> tuple[Instances, Registry, dict[str, Idle]]:
    cluster = ClusterAccess(GatewaySettings(), url=HERE)
    registry = Registry()
    instances = Instances(cluster, on_failure=lambda _: None)
    instances.registry = cast("InstanceRegistry", registry)
    idle = {}
    for name, age_s in aged:
        spec = InstanceSpec(group="g", name=name)
        registry.register(spec)
        one = Idle(cluster.client, spec)
        one.age_s = age_s
        instances._local[("g", name)] = idle[name] = one
    return instances, registry, idle


async def test_what_is_used_is_kept_alive_before_what_is_over_is_ended() -> None:
    """Ending an instance takes long while its coordinator is away; meanwhile other gateways delete instances whose
    registration is not repeated.
    """
    instances, registry, idle = instances_of(("over", 400.0), ("used", 1.0))

    async def takes_long() -> None:
        assert ("update", "used") in registry.log
        registry.log.append(("end", "over"))

    idle["over"].ending = takes_long
    async with asyncio.timeout(DEADLINE_S):
        await instances._sweep_once(LIMIT_S)
        await instances.close()
    assert registry.log[-2:] == [("end", "over"), ("forget", "over")]
    assert set(registry.known) == {("g", "used")}


async def test_one_that_another_gateway_took_over_ends_without_a_commit() -> None:
    """The other gateway reads on from the committed offsets, and may have committed later ones since."""
    instances, registry, idle = instances_of(
        ("found", 1.0), ("swept", 1.0), ("closed", 1.0), ("deleted", 1.0), ("ours", 1.0)
    )
    for name in ("found", "swept"):
        registry.register(InstanceSpec(group="g", name=name), owner=THERE)
    neighbour = Neighbour()
    neighbour.answers.set()
    for name in ("_http", "_http_of_checks"):
        client = httpx.AsyncClient(transport=httpx.MockTransport(neighbour))
        setattr(instances.other_gateways, name, client)
    del registry.known["g", "deleted"]
    async with asyncio.timeout(DEADLINE_S):
        await instances.find("g", "found", request_of(b"/records", None))
        with pytest.raises(RestError, match="there is no consumer instance"):
            await instances.find("g", "deleted", request_of(b"/records", None))
        await instances._sweep_once(LIMIT_S)
        registry.register(InstanceSpec(group="g", name="closed"), owner=THERE)
        await instances.close()
    moved = {name: one.was_moved for name, one in idle.items()}
    assert moved == {
        "found": True,
        "swept": True,
        "closed": True,
        "deleted": True,
        "ours": False,
    }


async def test_one_that_cannot_end_does_not_keep_the_others() -> None:
    instances, registry, _ = instances_of(("bad", 400.0), ("good", 400.0))
    registry.failing.add("bad")
    async with asyncio.timeout(DEADLINE_S):
        await instances._sweep_once(LIMIT_S)
        await instances.close()
    assert ("forget", "good") in registry.log


async def test_one_that_hangs_does_not_keep_the_others() -> None:
    instances, registry, idle = instances_of(("hangs", 400.0), ("good", 400.0))
    forever = asyncio.Event()
    idle["hangs"].ending = forever.wait
    async with asyncio.timeout(DEADLINE_S):
        sweeping = asyncio.create_task(instances._sweep_once(LIMIT_S))
        await registry.forgot.wait()
        forever.set()
        await sweeping
        await instances.close()


async def test_who_is_not_read_for_a_while_rests() -> None:
    instances, _, idle = instances_of(("read", 1.0), ("quiet", 30.0), ("busy", 30.0))
    async with asyncio.timeout(DEADLINE_S), idle["busy"].lock:
        await instances._sweep_once(LIMIT_S)
    async with asyncio.timeout(DEADLINE_S):
        await instances.close()
    assert {name: one.rests for name, one in idle.items()} == {"read": 0, "quiet": 1, "busy": 0}


class Neighbour:
    """Another gateway. It responds to requests after `answers` was set.

    It responds to the first `probes_alive` liveness checks, and to none after them. With `recovers`, the last of these
    checks sets `answers`.
    """

    def __init__(self, probes_alive: int = 0, *, recovers: bool = False) -> None:
        self.probes_alive, self.recovers = probes_alive, recovers
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self.is_left = False
        self.check_fails: httpx.TransportError = httpx.ReadTimeout("hangs")
        self.refusals = 0  # number of checks to refuse first

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/livez" and self.refusals:
            self.refusals -= 1
            raise httpx.ConnectError("connection refused")
        if request.url.path == "/livez":
            if not self.probes_alive:
                raise self.check_fails
            self.probes_alive -= 1
            if not self.probes_alive and self.recovers:
                self.answers.set()
            return httpx.Response(200)
        self.asked.set()
        try:
            await self.answers.wait()
        except asyncio.CancelledError:
            self.is_left = True
            raise
        return httpx.Response(200, content=b"done")


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[None]:
    yield


def request_of(path: bytes, at_stop: Elsewhere | None) -> PassedRequest:
    return PassedRequest("GET", path, b"", {}, b"", connected, at_stop)


def beside(neighbour: Neighbour) -> tuple[Instances, Registry]:
    """Return the instances of a gateway without any, and a registry with one of another gateway."""
    instances, registry, _ = instances_of()
    registry.register(InstanceSpec(group="g", name="i"), owner=THERE)
    for name in ("_http", "_http_of_checks"):
        client = httpx.AsyncClient(transport=httpx.MockTransport(neighbour))
        setattr(instances.other_gateways, name, client)
    return instances, registry


async def test_a_long_poll_that_was_passed_on_returns_when_this_gateway_stops() -> None:
    """Before, it was cut off when the gateway stopped: with two gateways, half of all polls in each
    rolling restart.
    """
    nothing = Elsewhere(200, b"[]", "application/json")
    async with asyncio.timeout(DEADLINE_S):
        instances, _ = beside(neighbour := Neighbour())
        asking = asyncio.create_task(instances.find("g", "i", request_of(b"/records", nothing)))
        await neighbour.asked.wait()
        instances._cluster.waits.stop()
        assert await asking == nothing
        assert neighbour.is_left, "the other gateway would hand out records to nobody"
        await instances.close()


async def test_other_requests_that_were_passed_on_end_before_this_gateway_does() -> None:
    async with asyncio.timeout(DEADLINE_S):
        instances, _ = beside(neighbour := Neighbour())
        asking = asyncio.create_task(instances.find("g", "i", request_of(b"/offsets", None)))
        await neighbour.asked.wait()
        instances._cluster.waits.stop()
        neighbour.answers.set()
        assert await asking == Elsewhere(200, b"done", None)
        await instances.close()


async def test_a_gateway_may_take_as_long_as_the_longest_poll() -> None:
    """Otherwise another gateway would take its instance over while it serves a poll."""
    settings = GatewaySettings(consumer_request_timeout_ms_max=900_000)
    instances = Instances(ClusterAccess(settings, url=HERE), on_failure=lambda _: None)
    assert (instances.other_gateways._http.timeout.read or 0) > 900
    await instances.close()


@pytest.mark.parametrize("path", [b"/records", b"/offsets"])
@pytest.mark.parametrize("probes_alive", [0, 2])
async def test_the_instance_of_a_gateway_that_hangs_is_taken_over(
    monkeypatch: pytest.MonkeyPatch, path: bytes, probes_alive: int
) -> None:
    """The kernel of this gateway still accepts connections. Without the check, each request waited for two minutes."""
    monkeypatch.setattr(f"{OtherGateways.__module__}._CHECK_EVERY_S", 0.001)
    async with asyncio.timeout(DEADLINE_S):
        instances, _ = beside(neighbour := Neighbour(probes_alive))
        found = await instances.find("g", "i", request_of(path, None))
        assert isinstance(found, Instance)
        assert neighbour.is_left
        assert neighbour.probes_alive == 0
        await instances.close()


async def test_the_instance_of_a_slow_gateway_is_not_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit waits for its turn behind a long poll of the same instance."""
    monkeypatch.setattr(f"{OtherGateways.__module__}._CHECK_EVERY_S", 0.001)
    async with asyncio.timeout(DEADLINE_S):
        instances, _ = beside(neighbour := Neighbour(3, recovers=True))
        found = await instances.find("g", "i", request_of(b"/offsets", None))
        assert found == Elsewhere(200, b"done", None)
        assert neighbour.probes_alive == 0
        await instances.close()


async def test_the_checks_go_on_when_the_client_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a client whose timeout is shorter than the checks take was never served."""
    monkeypatch.setattr(f"{OtherGateways.__module__}._CHECK_EVERY_S", 0.001)
    async with asyncio.timeout(DEADLINE_S):
        instances, _ = beside(neighbour := Neighbour())
        asking = asyncio.create_task(instances.find("g", "i", request_of(b"/records", None)))
        await neighbour.asked.wait()
        hangs = instances.other_gateways._gateways[THERE].hangs
        asking.cancel()
        await asyncio.wait({asking})
        await hangs.wait()
        neighbour.asked.clear()
        assert isinstance(await instances.find("g", "i", request_of(b"/records", None)), Instance)
        assert not neighbour.asked.is_set(), "it waited for the gateway that hangs"
        await instances.close()


async def test_a_gateway_that_recovers_or_restarts_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{OtherGateways.__module__}._CHECK_EVERY_S", 0.001)
    async with asyncio.timeout(DEADLINE_S):
        instances, registry = beside(neighbour := Neighbour())
        found = await instances.find("g", "i", request_of(b"/offsets", None))
        assert isinstance(found, Instance)
        neighbour.answers.set()
        neighbour.check_fails = httpx.ConnectError("connection refused")
        gateway = instances.other_gateways._gateways[THERE]
        while gateway.hangs.is_set():  # noqa: ASYNC110  an Event cannot tell that it was cleared
            await asyncio.sleep(0.001)
        registry.register(InstanceSpec(group="g", name="new"), owner=THERE)
        found = await instances.find("g", "new", request_of(b"/offsets", None))
        assert found == Elsewhere(200, b"done", None)
        await instances.close()


async def test_a_gateway_is_no_longer_checked_when_nobody_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (("_CHECK_EVERY_S", 0.001), ("_CHECKED_S", 0.01)):
        monkeypatch.setattr(f"{OtherGateways.__module__}.{name}", seconds)
    async with asyncio.timeout(DEADLINE_S):
        instances, _ = beside(neighbour := Neighbour(10**9))
        neighbour.answers.set()
        await instances.find("g", "i", request_of(b"/offsets", None))
        while instances.other_gateways._gateways:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await instances.close()


async def test_a_gateway_that_has_recovered_since_its_last_check_keeps_its_instances() -> None:
    """A takeover would read again the records that it has returned to clients, and that are not committed yet."""
    async with asyncio.timeout(DEADLINE_S):
        instances, _ = beside(neighbour := Neighbour(1))
        with instances.other_gateways._checked(THERE) as gateway:
            gateway.hangs.set()
        neighbour.answers.set()
        found = await instances.find("g", "i", request_of(b"/records", None))
        assert found == Elsewhere(200, b"done", None)
        await instances.close()


async def test_one_refused_check_ends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that shuts down refuses new connections, but still responds to the requests that it has received."""
    monkeypatch.setattr(f"{OtherGateways.__module__}._CHECK_EVERY_S", 0.001)
    async with asyncio.timeout(DEADLINE_S):
        neighbour = Neighbour(2, recovers=True)
        neighbour.refusals = 1
        instances, _ = beside(neighbour)
        found = await instances.find("g", "i", request_of(b"/offsets", None))
        assert found == Elsewhere(200, b"done", None)
        assert neighbour.refusals == 0
        await instances.close()


async def test_refused_checks_end_requests_that_would_wait_for_a_lost_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{OtherGateways.__module__}._CHECK_EVERY_S", 0.001)
    async with asyncio.timeout(DEADLINE_S):
        neighbour = Neighbour()
        neighbour.refusals = 10**9
        instances, _ = beside(neighbour)
        found = await instances.find("g", "i", request_of(b"/offsets", None))
        assert isinstance(found, Instance)
        await instances.close()


async def test_a_gateway_is_checked_as_long_as_a_request_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (("_CHECK_EVERY_S", 0.001), ("_CHECKED_S", 0.0)):
        monkeypatch.setattr(f"{OtherGateways.__module__}.{name}", seconds)
    async with asyncio.timeout(DEADLINE_S):
        instances, _ = beside(Neighbour(5))
        found = await instances.find("g", "i", request_of(b"/offsets", None))
        assert isinstance(found, Instance)
        await instances.close()


async def test_a_late_check_of_one_request_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A regular check finds that the gateway responds again, while the extra check for one request still waits. That
    extra check then times out. It must not end the request that was sent in the meantime.
    """
    late = asyncio.Event()
    async with asyncio.timeout(DEADLINE_S):
        instances, _ = beside(neighbour := Neighbour())
        others = instances.other_gateways

        async def check(_url: str, _limit_s: float) -> None:
            await late.wait()
            raise httpx.ReadTimeout("late")

        monkeypatch.setattr(others, "_request_liveness", check)
        with others._checked(THERE) as gateway:
            gateway.hangs.set()
            first = asyncio.create_task(instances.find("g", "i", request_of(b"/offsets", None)))
            while gateway.checking_again is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
            gateway.hangs.clear()
            second = asyncio.create_task(instances.find("g", "i", request_of(b"/offsets", None)))
            await neighbour.asked.wait()
            late.set()
            neighbour.answers.set()
            done = Elsewhere(200, b"done", None)
            assert [await first, await second] == [done, done]
        await instances.close()
