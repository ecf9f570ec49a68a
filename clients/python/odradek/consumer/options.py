"""The options of a consumer and of its group membership."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from odradek.consumer.fetch_planner import ResetPolicy
from odradek.errors import InvalidConfig
from odradek.partitions import TopicPartition

Deserializer: TypeAlias = Callable[[bytes | None], Any]
IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """The options by which a consumer fetches and decodes records."""

    auto_offset_reset: ResetPolicy = "latest"
    """Where to start if a partition has no position or committed offset, or if that offset is not in the log; "error":
    raise.
    """
    isolation_level: IsolationLevel = "read_uncommitted"
    """"read_committed" returns no records of open and aborted transactions; "read_uncommitted" returns all records."""
    prefetch_bytes_max: int = 32 * 1024 * 1024
    """Most bytes that are fetched ahead, for all partitions together. 1 MiB to 1 GiB."""
    fetch_message_bytes_max: int = 1024 * 1024
    """Largest size of one fetch response in bytes. 1 KiB to 60 MiB; a batch that is larger arrives whole."""
    fetch_bytes_min: int = 1
    """A broker collects this many bytes before it sends them, but waits no longer than `fetch_wait_ms_max`."""
    fetch_wait_ms_max: int = 500
    """Longest time that a broker holds records back to collect `fetch_bytes_min`."""
    client_rack: str = ""
    """Rack of this client. If it is set, the consumer reads from an in-sync replica in that rack (KIP-392)."""
    request_timeout_ms: int = 30_000
    """Longest time that a request for offsets or metadata may take."""
    key_deserializer: Deserializer | None = None
    """Function that converts bytes to keys; None: keys stay bytes."""
    value_deserializer: Deserializer | None = None
    """Function that converts bytes to values; None: values stay bytes."""

    def __post_init__(self) -> None:
        _check(
            "auto_offset_reset",
            self.auto_offset_reset in ("earliest", "latest", "error"),
            self.auto_offset_reset,
            "earliest, latest, error",
        )
        _check(
            "isolation_level",
            self.isolation_level in ("read_uncommitted", "read_committed"),
            self.isolation_level,
            "read_uncommitted, read_committed",
        )
        _check(
            "prefetch_bytes_max",
            1 << 20 <= self.prefetch_bytes_max <= 1 << 30,
            self.prefetch_bytes_max,
            "1 MiB to 1 GiB",
        )
        _check(
            "fetch_message_bytes_max",
            1 << 10 <= self.fetch_message_bytes_max <= 60 << 20,
            self.fetch_message_bytes_max,
            "1 KiB to 60 MiB",
        )
        _check("fetch_bytes_min", self.fetch_bytes_min >= 0, self.fetch_bytes_min, "0 or more")
        _check(
            "fetch_wait_ms_max",
            0 <= self.fetch_wait_ms_max <= 60_000,
            self.fetch_wait_ms_max,
            "0 to 60000",
        )
        _check(
            "request_timeout_ms", self.request_timeout_ms > 0, self.request_timeout_ms, "above 0"
        )


def _check(name: str, is_good: bool, value: object, allowed: str) -> None:
    if not is_good:
        raise InvalidConfig(f"{name} is {value!r}", hint=f"allowed: {allowed}")


GroupListener: TypeAlias = Callable[[Sequence[TopicPartition]], "Awaitable[Any] | None"]


class GroupIdentity(NamedTuple):
    """Identifies the group for which a transaction commits offsets, and the member of it that read the records.
    `member_epoch` is -1 if there is no member.
    """

    group: str
    member_id: str = ""
    member_epoch: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """The options of a consumer's membership in a group.

    `on_assign`, `on_revoke` and `on_lost` may be coroutine functions, which are awaited. Before it calls `on_revoke`,
    the member waits until the program asks for more records, and so has processed those of the revoked partitions. It
    waits for at most half of `rebalance_timeout_ms`. A listener that still runs when the consumer closes is cancelled;
    `on_revoke` is then called again, with all partitions of the member.
    """

    group: str
    """The id of the group."""
    pattern: str | None = None
    """Regular expression (RE2 syntax) for the whole name of topics. All topics that match are read, including later
    ones.
    """
    exclude_internal_topics: bool = True
    """Whether the pattern does not match internal topics. Topics that are named in `subscribe` are read anyway."""
    instance_id: str | None = None
    """Name of a static member, the same over restarts. The member keeps its partitions during a short absence."""
    member_id: str | None = None
    """The member's id, which no other live member of the group may have. None: a random one."""
    assignor: Literal["uniform", "range"] | None = None
    """Name of the broker's assignor, uniform or range. None: the one that the group is configured with."""
    auto_commit: bool = True
    """Whether to commit, at intervals, the records that were returned before the last read began (at least once)."""
    auto_commit_interval_ms: int = 5_000
    """Time between two automatic commits."""
    rebalance_timeout_ms: int = 60_000
    """How long the member may take to give up partitions, `on_revoke` included. After that, the group removes it."""
    on_assign: GroupListener | None = None
    """Called with new partitions before their first record is returned."""
    on_revoke: GroupListener | None = None
    """Called with revoked partitions while the member still owns them, so that it can commit their offsets."""
    on_lost: GroupListener | None = None
    """Called with partitions that other members already own, whose offsets must not be committed. None: `on_revoke` is
    called.
    """

    def __post_init__(self) -> None:
        if not self.group:
            raise InvalidConfig("the name of the group is empty", hint="give the group a name")
        if self.auto_commit_interval_ms < 1 or self.rebalance_timeout_ms < 1:
            raise InvalidConfig("auto_commit_interval_ms and rebalance_timeout_ms must be above 0")
