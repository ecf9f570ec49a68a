"""What a broker sets for its consumer groups."""

from __future__ import annotations

from dataclasses import dataclass
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
