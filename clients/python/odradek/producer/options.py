"""The options of a producer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from odradek.errors import InvalidConfig, check_option
from odradek.producer.partitioner import Partitioner
from odradek_protocol.records.batch_header import Compression

Acks: TypeAlias = Literal[0, 1, -1, "all", "0", "1", "-1"]
Serializer: TypeAlias = Callable[[Any], bytes | None]

_ACKS = {"all": -1, -1: -1, "-1": -1, 0: 0, "0": 0, 1: 1, "1": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The options of a producer.

    With the defaults, each record is written exactly once, the records of a partition keep their order, and a record is
    acknowledged when all in-sync replicas have it.
    """

    acks: Acks = "all"
    """When a record is acknowledged: when all in-sync replicas have it ("all"), when the leader has it (1), or when it
    is sent, without a response (0).
    """
    enable_idempotence: bool | None = None
    """Whether brokers drop the duplicates of retried batches and keep batches in order. None: only if acks is "all"."""
    linger_ms: int = 5
    """How long a batch waits for more records while the broker has outstanding requests of this producer. 0 to
    60000.
    """
    batch_bytes_max: int = 256 * 1024
    """Largest size of a batch in bytes, before compression. 1 to request_bytes_max."""
    request_bytes_max: int = 1_000_000
    """Largest size of a request, and thus of a record, in bytes. 1 to 60 MiB. The topic's max.message.bytes limits
    records, too.
    """
    buffer_bytes_max: int = 64 * 1024 * 1024
    """Bytes of memory for records that are not acknowledged yet. When the buffer is full, `send` waits."""
    max_block_ms: int = 60_000
    """Longest time that `send` waits for buffer space, or for the metadata of a topic."""
    max_in_flight: int = 5
    """Maximum number of unacknowledged batches per partition. 1 to 5 with idempotence, otherwise 1 to 1000."""
    delivery_timeout_ms: int = 120_000
    """Longest time from `send` to the acknowledgement, retries included. After that, the record fails."""
    request_timeout_ms: int = 30_000
    """Longest wait for the response to one request. After that, the producer closes the connection and retries."""
    retry_backoff_ms: int = 20
    """Wait before the first retry. The wait doubles with each retry, up to `retry_backoff_max_ms`, and ends early if a
    new leader is elected.
    """
    retry_backoff_max_ms: int = 1_000
    """Longest wait before a retry."""
    compression: str = "none"
    """Codec for the compression of batches: none, gzip, snappy, lz4 or zstd."""
    compression_level: int | None = None
    """Compression level for gzip, lz4 or zstd. None: the default of the codec."""
    key_serializer: Serializer | None = None
    """Function that converts keys to bytes. None: keys must be bytes."""
    value_serializer: Serializer | None = None
    """Function that converts values to bytes. None: values must be bytes."""
    partitioner: Partitioner | None = None
    """Function that takes a key and the number of partitions, and returns a partition. None: Kafka's murmur2 hash."""
    allow_auto_create_topics: bool = False
    """Whether the brokers create a topic that does not exist, if auto.create.topics.enable of the cluster is true. A
    warning in the log then names the topic. False: `send` raises UnknownTopic, so that no record is written to a
    misspelt topic.
    """
    transactional_id: str | None = None
    """Name that identifies this producer across restarts. If it is set, all records must be sent in transactions, and
    the producer fences older producers with the same name.
    """
    transaction_timeout_ms: int = 60_000
    """How long a transaction may stay open before the cluster aborts it. 10 to the brokers'
    transaction.max.timeout.ms.
    """
    commit_timeout_ms: int = 120_000
    """Longest time that a commit waits for its response. After that, its outcome is unknown."""

    def __post_init__(self) -> None:
        check_option("acks", self.acks in _ACKS, self.acks, "0, 1 or 'all'")
        check_option("linger_ms", 0 <= self.linger_ms <= 60_000, self.linger_ms, "0 to 60000")
        check_option(
            "request_bytes_max",
            0 < self.request_bytes_max <= 60 << 20,
            self.request_bytes_max,
            "1 to 60 MiB",
        )
        check_option(
            "batch_bytes_max",
            0 < self.batch_bytes_max <= max(self.request_bytes_max, 1),
            self.batch_bytes_max,
            "1 to request_bytes_max",
        )
        check_option(
            "buffer_bytes_max", self.buffer_bytes_max > 0, self.buffer_bytes_max, "above 0"
        )
        check_option("max_block_ms", self.max_block_ms >= 0, self.max_block_ms, "0 or more")
        most = 5 if self.is_idempotent else 1000
        check_option(
            "max_in_flight", 1 <= self.max_in_flight <= most, self.max_in_flight, f"1 to {most}"
        )
        check_option(
            "delivery_timeout_ms", self.delivery_timeout_ms > 0, self.delivery_timeout_ms, "above 0"
        )
        check_option(
            "request_timeout_ms", self.request_timeout_ms > 0, self.request_timeout_ms, "above 0"
        )
        check_option(
            "retry_backoff_ms", self.retry_backoff_ms > 0, self.retry_backoff_ms, "above 0"
        )
        check_option(
            "retry_backoff_max_ms",
            self.retry_backoff_max_ms >= self.retry_backoff_ms,
            self.retry_backoff_max_ms,
            "retry_backoff_ms or more",
        )
        names = [c.name.lower() for c in Compression]
        check_option("compression", self.compression in names, self.compression, ", ".join(names))
        if self.transactional_id is not None:
            check_option("transactional_id", bool(self.transactional_id), "", "a name")
            least_ms = 10
            check_option(
                "transaction_timeout_ms",
                self.transaction_timeout_ms >= least_ms,
                self.transaction_timeout_ms,
                f"{least_ms} or more",
            )
            check_option(
                "commit_timeout_ms", self.commit_timeout_ms > 0, self.commit_timeout_ms, "above 0"
            )
            if not self.is_idempotent or self.acks_number != -1:
                raise InvalidConfig(
                    "transactional_id needs acks='all' and idempotence",
                    hint="omit acks and enable_idempotence",
                )
        if self.enable_idempotence and self.acks_number != -1:
            raise InvalidConfig(
                "enable_idempotence needs acks='all'",
                hint="set acks='all', or omit enable_idempotence",
            )

    @property
    def acks_number(self) -> int:
        """`acks` as a number of Kafka's protocol: -1 (all), 0 or 1."""
        return _ACKS[self.acks]

    @property
    def is_idempotent(self) -> bool:
        """Whether batches have a producer id and sequence numbers."""
        if self.enable_idempotence is None:
            return _ACKS.get(self.acks) == -1
        return self.enable_idempotence

    @property
    def compression_codec(self) -> Compression:
        return Compression[self.compression.upper()]
