"""The options of a consumer and of its group membership."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from odradek.consumer.fetch_planner import ResetPolicy
from odradek.errors import InvalidConfig, check_option
from odradek.partitions import TopicPartition

Deserializer: TypeAlias = Callable[[bytes | None], Any]
IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """The options of a consumer."""

    auto_offset_reset: ResetPolicy = "latest"
    """Where to start if a partition has no position or committed offset, or if that offset is not in the log:
    "earliest", "latest", or "error" (the next read raises OffsetOutOfRange).
    """
    isolation_level: IsolationLevel = "read_uncommitted"
    """Which records of transactions are returned. "read_committed": only those of committed transactions;
    "read_uncommitted": all records.
    """
    prefetch_bytes_max: int = 32 * 1024 * 1024
    """Maximum number of bytes that are fetched in advance, for all partitions together. 1 MiB to 1 GiB."""
    fetch_message_bytes_max: int = 1024 * 1024
    """Largest size of one fetch response in bytes. 1 KiB to 60 MiB. A batch that is larger is sent as a whole."""
    fetch_bytes_min: int = 1
    """A broker sends records when this many bytes are available, or when `fetch_wait_ms_max` has passed."""
    fetch_wait_ms_max: int = 500
    """Longest time that a broker waits for `fetch_bytes_min`. 0 to 60000."""
    client_rack: str = ""
    """Rack of this client. If it is set, the consumer fetches from an in-sync replica in that rack (KIP-392),
    otherwise from leaders.
    """
    request_timeout_ms: int = 30_000
    """Longest time that a request for offsets or metadata may take."""
    key_deserializer: Deserializer | None = None
    """Function that converts bytes to keys. None: keys are returned as bytes."""
    value_deserializer: Deserializer | None = None
    """Function that converts bytes to values. None: values are returned as bytes."""

    def __post_init__(self) -> None:
        check_option(
            "auto_offset_reset",
            self.auto_offset_reset in ("earliest", "latest", "error"),
            self.auto_offset_reset,
            "earliest, latest, error",
        )
        check_option(
            "isolation_level",
            self.isolation_level in ("read_uncommitted", "read_committed"),
            self.isolation_level,
            "read_uncommitted, read_committed",
        )
        check_option(
            "prefetch_bytes_max",
            1 << 20 <= self.prefetch_bytes_max <= 1 << 30,
            self.prefetch_bytes_max,
            "1 MiB to 1 GiB",
        )
        check_option(
            "fetch_message_bytes_max",
            1 << 10 <= self.fetch_message_bytes_max <= 60 << 20,
            self.fetch_message_bytes_max,
            "1 KiB to 60 MiB",
        )
        check_option(
            "fetch_bytes_min", self.fetch_bytes_min >= 0, self.fetch_bytes_min, "0 or more"
        )
        check_option(
            "fetch_wait_ms_max",
            0 <= self.fetch_wait_ms_max <= 60_000,
            self.fetch_wait_ms_max,
            "0 to 60000",
        )
        check_option(
            "request_timeout_ms", self.request_timeout_ms > 0, self.request_timeout_ms, "above 0"
        )


GroupListener: TypeAlias = Callable[[Sequence[TopicPartition]], "Awaitable[Any] | None"]


class GroupIdentity(NamedTuple):
    """Identifies the group for which a transaction commits offsets, and the member that read the records.
    `member_epoch` is -1 if the offsets are committed without a member.
    """

    group: str
    member_id: str = ""
    member_epoch: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """The options of a consumer's membership in a group.

    `on_assign`, `on_revoke` and `on_lost` may be coroutine functions; they are awaited. Before the member calls
    `on_revoke`, it waits until the program requests further records, and so has processed the records of the revoked
    partitions. It waits for at most half of `rebalance_timeout_ms`. A listener that still runs when the consumer closes
    is cancelled, and `on_revoke` is then called with all partitions of the member.
    """

    group: str
    """The name of the group."""
    pattern: str | None = None
    """Regular expression (RE2 syntax) that must match the whole name of a topic. All topics that match are read,
    including topics that are created later.
    """
    exclude_internal_topics: bool = True
    """Whether internal topics are excluded from the pattern. Topics that are given to `subscribe` are always read."""
    instance_id: str | None = None
    """Name of a static member, which stays the same across restarts. The member keeps its partitions while it is
    disconnected for less than the session timeout. None: a dynamic member.
    """
    member_id: str | None = None
    """The member's id, which must be unique in the group. None: a random id."""
    assignor: Literal["uniform", "range"] | None = None
    """The server-side assignor, uniform or range. None: the group's default."""
    auto_commit: bool = True
    """Whether to commit, at intervals, the records that were returned before the last read began (at least once)."""
    auto_commit_interval_ms: int = 5_000
    """Time between two automatic commits."""
    rebalance_timeout_ms: int = 60_000
    """How long the member may take to revoke partitions, including `on_revoke`. After that, the group removes the
    member.
    """
    on_assign: GroupListener | None = None
    """Called with new partitions before their first record is returned."""
    on_revoke: GroupListener | None = None
    """Called with revoked partitions while the member still owns them, so that their offsets can be committed."""
    on_lost: GroupListener | None = None
    """Called with partitions that other members may already own, so their offsets must not be committed. None:
    `on_revoke` is called instead.
    """

    def __post_init__(self) -> None:
        if not self.group:
            raise InvalidConfig("the name of the group is empty", hint="give the group a name")
        if self.auto_commit_interval_ms < 1 or self.rebalance_timeout_ms < 1:
            raise InvalidConfig("auto_commit_interval_ms and rebalance_timeout_ms must be above 0")
