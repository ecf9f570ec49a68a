"""Settings of a broker's group coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

_NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})


def no_configs(_group_id: str) -> Mapping[str, str]:
    """Return no configs, so that all groups use the broker's settings."""
    return _NO_CONFIGS


class MigrationPolicy(StrEnum):
    """The directions in which a group with members may change its protocol (group.consumer.migration.policy)."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        """Whether a classic group may become a consumer group."""
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        """Whether a consumer group may become a classic group."""
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """The settings `group.consumer.*` of a broker. `configs_of` returns the dynamic configs of a group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    members_max: int
    default_assignor: str
    rebalance_heartbeat_interval_ms: int = 500
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    configs_of: Callable[[str], Mapping[str, str]] = no_configs

    def session_timeout_of(self, group_id: str) -> int:
        """Return the session timeout of the members of a group, in ms."""
        own = self.configs_of(group_id).get("consumer.session.timeout.ms")
        return self.session_timeout_ms if own is None else int(own)

    def heartbeat_interval_of(self, group_id: str) -> int:
        """Return the heartbeat interval in ms for a group that does not rebalance.

        If the group has dynamic configs, the interval is at most a third of its session timeout. The controller cannot
        ensure this if only one of the two configs is set, because it does not know this broker's default for the other
        config.
        """
        configs = self.configs_of(group_id)
        interval_ms = int(configs.get("consumer.heartbeat.interval.ms", self.heartbeat_interval_ms))
        if not configs:
            return interval_ms
        return max(1, min(interval_ms, self.session_timeout_of(group_id) // 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The group settings of a broker. The names are Kafka's, without their prefixes."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 10_000
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offset_metadata_bytes_max: int = 4_096
    stable_fetch_wait_max_ms: int = 500
    consumer: ConsumerGroupSettings = field(
        default_factory=lambda: ConsumerGroupSettings(
            session_timeout_ms=45_000,
            heartbeat_interval_ms=3_000,
            members_max=10_000,
            default_assignor="uniform",
        )
    )
