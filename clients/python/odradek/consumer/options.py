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
    """Where to start if there is no position or committed offset, or it is no longer in the log; "error" raises."""
    isolation_level: IsolationLevel = "read_uncommitted"
    """read_committed skips records of aborted and open transactions."""
    prefetch_bytes_max: int = 32 * 1024 * 1024
    """Most bytes that are fetched ahead, of all partitions together. 1 MiB to 1 GiB."""
    fetch_message_bytes_max: int = 1024 * 1024
    """Largest size of one fetch response. 1 KiB to 60 MiB; a batch that is larger arrives whole."""
    fetch_bytes_min: int = 1
    """Bytes that a broker waits for before it responds, for at most `fetch_wait_ms_max`."""
    fetch_wait_ms_max: int = 500
    """Longest wait of a broker for `fetch_bytes_min`."""
    client_rack: str = ""
    """Rack of this client, to read from the closest in-sync replica (KIP-392)."""
    request_timeout_ms: int = 30_000
    """Longest wait for offsets and metadata."""
    key_deserializer: Deserializer | None = None
    """Converts bytes to keys; None: keys are bytes."""
    value_deserializer: Deserializer | None = None
    """Converts bytes to values; None: values are bytes."""

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
    """A member of a group, on whose behalf a transaction commits offsets. `member_epoch` -1 means no member."""

    group: str
    member_id: str = ""
    member_epoch: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """The options of a consumer's membership in a group.

    Listeners may be coroutine functions, for which the group waits. They are called between two reads: when
    `on_revoke` is called, the program has asked for more records, so it has processed those of the revoked
    partitions.
    """

    group: str
    """The id of the group."""
    pattern: str | None = None
    """Subscribe to all present and future topics whose whole name matches (RE2 syntax)."""
    exclude_internal_topics: bool = True
    """Do not read internal topics that only the pattern matches. A topic subscribed to by name is read anyway."""
    instance_id: str | None = None
    """A name that survives restarts: such a static member keeps its partitions during a short absence."""
    assignor: Literal["uniform", "range"] | None = None
    """Server-side assignor that assigns the partitions. None: the one that the group is configured with."""
    auto_commit: bool = True
    """Commit, at intervals, the records that were returned before the last read began (at least once)."""
    auto_commit_interval_ms: int = 5_000
    """Interval of automatic commits."""
    rebalance_timeout_ms: int = 60_000
    """How long `on_revoke` may take; the group removes a member that takes longer."""
    on_assign: GroupListener | None = None
    """Called with new partitions before their first record is returned."""
    on_revoke: GroupListener | None = None
    """Called with revoked partitions while they are still owned: commit here."""
    on_lost: GroupListener | None = None
    """Called with partitions that other members own already: do not commit. None: `on_revoke` is called."""

    def __post_init__(self) -> None:
        if not self.group:
            raise InvalidConfig("the name of the group is empty", hint="give the group a name")
        if self.auto_commit_interval_ms < 1 or self.rebalance_timeout_ms < 1:
            raise InvalidConfig("auto_commit_interval_ms and rebalance_timeout_ms must be above 0")
