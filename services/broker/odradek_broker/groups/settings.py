"""Settings of a broker's group coordinators."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


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
    """The broker's settings `group.consumer.*`."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    members_max: int
    default_assignor: str
    rebalance_heartbeat_interval_ms: int = 500
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The group settings of a broker. The names are Kafka's without their prefixes."""

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
