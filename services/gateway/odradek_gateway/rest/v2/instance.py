"""One consumer instance of REST v2: its options, and the SDK consumer by which it reads and commits."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from odradek.client import Client
from odradek.consumer.consumer import Consumer
from odradek.consumer.options import GroupOptions
from odradek.errors import InvalidRequest, OdradekError, UnknownGroup
from odradek.partitions import TopicPartition
from odradek_gateway.errors import (
    BAD_CONSUMER_CONFIG,
    ILLEGAL_STATE,
    KAFKA_RETRIABLE_ERROR,
    RestError,
)
from odradek_runtime.logs import event_log

_WAITING_MAX: Final = 32
"""The most requests that may wait until one instance is free. Each of them counts as a running request of the gateway
(`requests.max`).
"""
_DISMISS_S: Final = 5.0
_AUTO_COMMIT_S: Final = 5.0  # like the default of auto.commit.interval.ms
_log = event_log(__name__)
_RESETS: Final = {"earliest": "earliest", "latest": "latest", "none": "error"}
_ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
_WHOLE_MAX: Final = 2**31 - 1
_NAME: Final = re.compile(r"(?!\.{1,2}$)[^/%]{0,249}")
INSTANCE_CONFIGS: Final[dict[str, Any]] = {
    "title": "InstanceConfigs",
    "description": "All configs are optional. Numbers and booleans may be given as strings.",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": {"type": ["string", "null"], "pattern": r"^(?!\.{1,2}$)[^/%]{0,249}$"},
        "id": {"type": ["string", "null"], "pattern": r"^(?!\.{1,2}$)[^/%]{0,249}$"},
        "format": {"enum": ["binary", "json", None]},
        "auto.offset.reset": {"enum": [*_RESETS, None]},
        "isolation.level": {"enum": [*_ISOLATION_LEVELS, None]},
        "auto.commit.enable": {"enum": ["true", "false", True, False, None]},
        "fetch.min.bytes": {
            "anyOf": [
                {"type": "integer", "minimum": -1, "maximum": _WHOLE_MAX},
                {"type": "string", "pattern": "^(-1|[0-9]{1,9})$"},
                {"type": "null"},
            ]
        },
        "consumer.request.timeout.ms": {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": _WHOLE_MAX},
                {"type": "string", "pattern": "^[0-9]{1,9}$"},
                {"type": "null"},
            ]
        },
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """The configuration and subscription of an instance. The registry topic stores it as JSON, so that another gateway
    can take the instance over.
    """

    group: str
    name: str
    principal: str = ""  # the principal that owns the instance; empty without authentication
    format: str = "binary"
    auto_offset_reset: str = "latest"
    isolation_level: str = "read_uncommitted"
    auto_commit: bool = True
    fetch_min_bytes: int = 1
    request_timeout_ms: int = 1_000
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[tuple[str, int], ...] = ()
    member_id: str = ""
    """Member id with which the instance joins its group; empty if an older version of the gateway wrote the spec."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> InstanceSpec:
        """Make a spec from the registry's JSON. Fields that a newer version of the gateway added are ignored."""
        names = {spec_field.name for spec_field in fields(cls)}
        return cls(
            **{
                **{name: value for name, value in body.items() if name in names},
                "topics": tuple(body.get("topics", ())),
                "partitions": tuple((t, int(p)) for t, p in body.get("partitions", ())),
            }
        )


def spec_of_request(group: str, body: Mapping[str, Any]) -> InstanceSpec:
    """Make a spec from the body of a create request. Raises RestError 42204 for an invalid config.

    Numbers and booleans may be strings, because clients of v2 send strings.
    """
    unknown = body.keys() - INSTANCE_CONFIGS["properties"].keys()
    if unknown:
        raise _bad(f"unknown fields: {', '.join(sorted(unknown))}")
    names = [body[key] for key in ("name", "id") if body.get(key) is not None]
    if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        raise _bad("name must be a string of at most 249 characters without / and %")
    return InstanceSpec(
        group=group,
        name=next((name for name in names if name), ""),
        format=_one_of(body, "format", "binary", ("binary", "json")),
        auto_offset_reset=_one_of(body, "auto.offset.reset", "latest", tuple(_RESETS)),
        isolation_level=_one_of(body, "isolation.level", "read_uncommitted", _ISOLATION_LEVELS),
        auto_commit=_one_of(body, "auto.commit.enable", "true", ("true", "false")) == "true",
        fetch_min_bytes=_whole(body, "fetch.min.bytes", default=1, minimum=-1),
        request_timeout_ms=_whole(body, "consumer.request.timeout.ms", default=1_000, minimum=0),
    )


def _one_of(body: Mapping[str, Any], name: str, default: str, allowed: tuple[str, ...]) -> str:
    given = body.get(name)
    value = default if given is None else str(given).lower()
    if value not in allowed:
        raise _bad(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def _whole(body: Mapping[str, Any], name: str, *, default: int, minimum: int) -> int:
    given = body.get(name)
    if given is None:
        return default
    text = str(given)
    if isinstance(given, bool) or not re.fullmatch(r"-?[0-9]{1,10}", text):
        raise _bad(f"{name} must be an integer, not {text!r}")
    if not minimum <= int(text) <= _WHOLE_MAX:
        raise _bad(f"{name} must be an integer from {minimum} to {_WHOLE_MAX}, not {text}")
    return int(text)


def _bad(message: str) -> RestError:
    return RestError(422, BAD_CONSUMER_CONFIG, message)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Instance:
    """A consumer instance that this gateway serves. It handles one request at a time, as clients of the API expect.

    A request that has waited in `turn` must check `is_ended`, because the instance may have been deleted or taken over
    by another gateway in the meantime.
    """

    client: Client
    spec: InstanceSpec
    prefetch_bytes_max: int = 1 << 20  # bytes that are fetched ahead
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    used_at_s: float = field(default_factory=time.monotonic)
    is_ended: bool = False
    _requests: int = 0
    _consumer: Consumer | None = None
    _is_resting: bool = False
    _committed_at_s: float = field(default_factory=time.monotonic)

    @property
    def reads_something(self) -> bool:
        """Whether the instance has a subscription or an assignment."""
        return bool(self.spec.topics or self.spec.pattern or self.spec.partitions)

    @property
    def idle_s(self) -> float:
        """Seconds since the last use of the instance."""
        return time.monotonic() - self.used_at_s

    def used(self) -> None:
        """Set the time of the last use to now. Each request calls this method when it begins and when it ends."""
        self.used_at_s = time.monotonic()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until the instance is free, and lock it for one request. Raises RestError 429 if too many requests
        wait.
        """
        if self._requests > _WAITING_MAX:
            words = f"{_WAITING_MAX} requests wait for instance {self.spec.name}"
            raise RestError(429, 42901, words)
        self._requests += 1
        try:
            async with self.lock:
                yield
        finally:
            self._requests -= 1

    def rest(self) -> None:
        """Discard the records that were fetched ahead, and fetch no records until the next read."""
        if self._consumer is not None:
            self._consumer.pause()
            self._is_resting = True

    async def end(self, *, is_moved: bool = False) -> None:
        """Close the instance: leave the group, and refuse further requests.

        An instance that commits automatically commits first, except if another gateway has taken it over (`is_moved`):
        that gateway may have committed later offsets.
        """
        self.is_ended = True
        await self._leave(commits=not is_moved)

    async def use(self, spec: InstanceSpec) -> None:
        """Replace the subscription or assignment.

        Raises:
            RestError: 40903 if subscription and assignment are mixed.
        """
        subscribes, assigns = bool(spec.topics or spec.pattern), bool(spec.partitions)
        if (subscribes and self.spec.partitions) or (
            assigns and (self.spec.topics or self.spec.pattern)
        ):
            raise RestError(
                409,
                ILLEGAL_STATE,
                "an instance has either a subscription or a manual assignment: delete the current one first",
            )
        if spec == self.spec:
            return
        await self._leave()
        self.spec = spec

    async def consumer(self) -> Consumer:
        """Return the instance's SDK consumer. The first call creates it and, with a subscription, joins the group.

        Raises:
            RestError: 40903 if the instance has no subscription and no assignment; 50003 if it was closed.
        """
        self._require_open()
        if self._consumer is not None:
            return self._consumer
        spec = self.spec
        reset: Any = _RESETS[spec.auto_offset_reset]
        isolation_level: Any = spec.isolation_level
        if spec.topics or spec.pattern:
            group = GroupOptions(
                group=spec.group,
                pattern=spec.pattern,
                member_id=spec.member_id or None,
                auto_commit=spec.auto_commit,
            )
            consumer = self.client.consumer(
                *spec.topics,
                group=group,
                auto_offset_reset=reset,
                isolation_level=isolation_level,
                prefetch_bytes_max=self.prefetch_bytes_max,
            )
            await consumer.__aenter__()
        elif spec.partitions:
            names = [TopicPartition(topic, index) for topic, index in spec.partitions]
            committed = await self.client.admin.group_offsets(spec.group, names)
            # If the instance was closed during this call, no code would close the consumer that is created next.
            self._require_open()
            consumer = self.client.consumer(
                auto_offset_reset=reset,
                isolation_level=isolation_level,
                prefetch_bytes_max=self.prefetch_bytes_max,
            )
            consumer.assign(names)
            for name, offset in committed.items():
                consumer.seek(name, offset)
        else:
            raise RestError(
                409, ILLEGAL_STATE, "the instance has no subscription and no assignment"
            )
        self._consumer = consumer
        return consumer

    async def read_begins(self) -> Consumer:
        """Return the consumer for a read. Records of earlier reads now count as processed, so their offsets may be
        committed.
        """
        consumer = await self.consumer()
        if self._is_resting:
            self._is_resting = False
            consumer.resume()
        if time.monotonic() - self._committed_at_s >= _AUTO_COMMIT_S:
            await self._auto_commit(consumer)
        return consumer

    async def commit(self, offsets: Mapping[TopicPartition, int] | None) -> None:
        """Commit these offsets. None commits the offsets of all records that were read."""
        consumer = await self.consumer()
        if not self.spec.partitions:
            await consumer.commit(offsets)
            return
        if offsets is None:
            offsets = consumer.positions()
        await self.client.admin.alter_group_offsets(self.spec.group, offsets)

    def _require_open(self) -> None:
        if self.is_ended:
            raise RestError(
                503,
                KAFKA_RETRIABLE_ERROR,
                "this gateway has just closed the instance: send the request again",
            )

    async def dismiss(self, member_id: str) -> None:
        """Remove from the group the member that the instance's former gateway used.

        Otherwise that member would own the partitions until its session times out, and this gateway would read nothing.
        """
        try:
            async with asyncio.timeout(_DISMISS_S):
                await self.client.admin.remove_group_member(self.spec.group, member_id)
        except (UnknownGroup, InvalidRequest):
            pass  # the member never joined, or its session has timed out
        except (OdradekError, TimeoutError) as error:
            _log.warning(
                "Failed to remove the group member of a gateway that does not respond; no records are read from its"
                " partitions until its session times out",
                group=self.spec.group,
                instance=self.spec.name,
                reason=str(error),
            )

    async def _auto_commit(self, consumer: Consumer) -> None:
        """Commit the offsets of an instance with a manual assignment. The SDK's consumer commits for a group member."""
        if not self.spec.partitions or not self.spec.auto_commit:
            return
        self._committed_at_s = time.monotonic()
        offsets = consumer.positions()
        try:
            await self.client.admin.alter_group_offsets(self.spec.group, offsets)
        except OdradekError as error:
            _log.warning(
                "Failed to commit offsets of a consumer instance",
                group=self.spec.group,
                reason=str(error),
            )

    async def _leave(self, *, commits: bool = True) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            if commits:
                await self._auto_commit(consumer)
            await consumer.close()
