"""Settings of a broker's transaction coordinator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The transaction settings of a broker. Settings that Kafka also has use Kafka's names without the prefix."""

    id_expiration_ms: int = 7 * 24 * 3_600_000
    remove_expired_interval_ms: int = 3_600_000
    max_timeout_ms: int = 15 * 60_000
    completion_wait_max_ms: int = 200
    """The longest time for which InitProducerId, AddPartitionsToTxn and EndTxn wait for the completion of the previous
    transaction, unless the request has its own limit.
    """
    load_grace_ms: int = 3_000
    """The minimum time between a load and the timeout of an open transaction, so that a failover does not abort it."""
    partitions_max: int = 10_000
    ids_max: int = 100_000
    held_of_id_max: int = 64
    held_max: int = 10_000
    reserve_size: int = 8
    steps_of_tick_max: int = 1_000
    """The maximum number of transactions that one call of `tick` aborts, and of ids that one call checks for expiry."""
    prepared_timeout_ms: int = 3_600_000
    staged_lease_ms: int = 60_000
    ledger_expiration_ms: int = 90 * 24 * 3_600_000
