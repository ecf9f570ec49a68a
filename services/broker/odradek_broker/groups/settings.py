"""What a broker sets for its groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class MigrationPolicy(StrEnum):
    """Which way a group with members may go between the protocols (group.consumer.migration.policy)."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        """From classic to consumer."""
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        """From consumer to classic."""
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """group.consumer.* of the broker."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    members_max: int
    default_assignor: str
    rebalance_heartbeat_interval_ms: int = 500
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The group settings of a broker, under Kafka's names without their prefixes."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 10_000
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offset_metadata_bytes_max: int = 4_096
    consumer: ConsumerGroupSettings = field(
        default_factory=lambda: ConsumerGroupSettings(
            session_timeout_ms=45_000,
            heartbeat_interval_ms=3_000,
            members_max=10_000,
            default_assignor="uniform",
        )
    )
