"""What a member of a consumer group can be told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from odradek.errors import InvalidConfig
from odradek.partitions import TopicPartition

GroupListener: TypeAlias = Callable[[Sequence[TopicPartition]], "Awaitable[Any] | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Membership of one consumer.

    Listeners may be coroutine functions; the group waits for them. They are called between two reads: when
    `on_revoke` is, the program has asked for other records than those of the partitions that go.
    """

    group: str
    """Id of the group."""
    pattern: str | None = None
    """Subscribe to the topics whose whole name matches (RE2 syntax), those to come included."""
    instance_id: str | None = None
    """A name that stays over restarts: a static member keeps its partitions while it is away briefly."""
    assignor: Literal["uniform", "range"] | None = None
    """None: the group's."""
    auto_commit: bool = True
    """Commit what was handed out before the last read began: at least once."""
    auto_commit_interval_ms: int = 5_000
    """Between two of these commits."""
    rebalance_timeout_ms: int = 60_000
    """How long `on_revoke` may take; a member that takes longer is taken out."""
    on_assign: GroupListener | None = None
    """Told of partitions that are new, before their first record is handed out."""
    on_revoke: GroupListener | None = None
    """Told of partitions that go, while they are still owned: commit here."""
    on_lost: GroupListener | None = None
    """Told of partitions that are somebody else's already: commit nothing. None: as `on_revoke`."""

    def __post_init__(self) -> None:
        if not self.group:
            raise InvalidConfig("group is empty", hint="give the group a name")
        if self.auto_commit_interval_ms < 1 or self.rebalance_timeout_ms < 1:
            raise InvalidConfig("auto_commit_interval_ms and rebalance_timeout_ms are above 0")
