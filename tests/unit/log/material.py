"""Test data for the log: batches, and a broker's data directory that is opened again after kills
and restarts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from random import Random

from odradek_broker.log.directory.restart_markers import RestartClass
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_directory import LoadReport, LogDirectory
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.storage import Storage
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    IncarnationId,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
)
from odradek_protocol.records.batch_header import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_AT,
    CRC_AT,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    Compression,
)
from odradek_protocol.records.builder import encode_batch
from odradek_protocol.records.codec import Record
from odradek_protocol.records.compression import BYTES_EXPANDED_MAX, compress
from odradek_protocol.records.hashes import crc32c
from tests.worlds.memory_storage import MemoryStorage

TOPIC = TopicName("flights")
TOPIC_ID = TopicId(bytes(range(16)))
PARTITION = PartitionIndex(0)
PATH = Path("/data")
SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200, file_delete_delay_ms=0)


def batch(
    base_offset: int,
    *,
    count: int = 1,
    leader_epoch: int = 0,
    timestamp_ms: int = 1000,
    value_bytes: int = 20,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    keys: Sequence[bytes | None] | None = None,
) -> bytes:
    """Return a batch with offsets and leader epoch, whose values name the records' offsets.

    Timestamps rise by 1 ms with each record.
    """
    records = [
        Record(
            keys[i] if keys is not None else None,
            b"%d:" % (base_offset + i) + b"v" * value_bytes,
            timestamp_ms=timestamp_ms + i,
        )
        for i in range(count)
    ]
    return encode_batch(
        records,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )


def unreadable(base_offset: int, what: str) -> bytes:
    """Return a batch of three records with a correct CRC that cannot be decoded.

    `what` is "noise" (the records are random bytes), "bomb" (they decompress to more than is
    allowed), or "too many" (a valid batch; the test lowers the limit of records below it).
    """
    if what == "too many":
        return batch(base_offset, count=3)
    records = b"\xff" * 40
    attributes = 0
    if what == "bomb":
        records = compress(bytes(BYTES_EXPANDED_MAX + 1), Compression.ZSTD)
        attributes = Compression.ZSTD
    whole = bytearray(batch(base_offset, count=3)[:HEADER_BYTES] + records)
    length = len(whole) - LENGTH_PREFIX_BYTES
    whole[BATCH_LENGTH_AT : BATCH_LENGTH_AT + 4] = length.to_bytes(4, "big")
    whole[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = attributes.to_bytes(2, "big")
    whole[CRC_AT:ATTRIBUTES_AT] = crc32c(bytes(whole[ATTRIBUTES_AT:])).to_bytes(4, "big")
    return bytes(whole)


class Broker:
    """One data directory with one partition, which can be opened again and again."""

    def __init__(self, storage: Storage, path: Path = PATH, config: LogConfig = SMALL) -> None:
        self.storage = storage
        self.path = path
        self.config = config
        self.lives = 0
        self.boot_id = "boot-0"
        self.report: LoadReport | None = None
        self.restart_class: RestartClass | None = None
        self.registers = True  # with a controller, at each start
        LogDirectory.format(path, cluster_id=ClusterId("c"), node_id=BrokerId(1), storage=storage)
        self.start()
        self.directory.create(TOPIC, TOPIC_ID, PARTITION, config)

    def start(self) -> None:
        """Open the directory in a new process."""
        self.lives += 1
        self.directory = LogDirectory.open(
            self.path,
            cluster_id=ClusterId("c"),
            node_id=BrokerId(1),
            incarnation=IncarnationId(bytes([self.lives % 256]) * 16),
            storage=self.storage,
            boot_id=self.boot_id,
        )
        self.restart_class = self.directory.restart_class
        if self.registers:
            self.directory.loss_reported()
        self.report = self.directory.load(lambda topic, topic_id: self.config, threads_max=1)

    @property
    def log(self) -> PartitionLog:
        log = self.directory.get(TOPIC_ID, PARTITION)
        assert log is not None
        return log

    def stop_and_start(self) -> None:
        """Restart the broker in a controlled way."""
        self.directory.close(broker_epoch=BrokerEpoch(self.lives))
        self.start()

    def kill_and_start(self) -> None:
        """Kill the process (kill -9) and start it again: all writes are still in the page cache."""
        assert isinstance(self.storage, MemoryStorage)
        self.storage.kill_process()
        self.start()

    def lose_power_and_start(self, random: Random | None = None) -> None:
        """Switch the machine off and on: only synced bytes are sure to survive."""
        assert isinstance(self.storage, MemoryStorage)
        self.storage.lose_power(random)
        self.boot_id = f"boot-{self.lives}"
        self.start()

    def append(self, count: int = 1, **arguments: int) -> bytes:
        """Append one batch at the log's end; returns its bytes."""
        data = batch(self.log.log_end_offset, count=count, **arguments)  # type: ignore[arg-type]
        self.log.append(data, now_ms=0)
        return data

    def sync(self, *, full: bool = False) -> None:
        self.sync_log(self.log, full=full)

    def sync_log(self, log: PartitionLog, *, full: bool = False) -> None:
        job = log.begin_sync(full=full)
        if job is not None:
            job.run()
            log.finish(job)

    def checkpoint(self) -> None:
        """Sync everything and write the offset checkpoints, as the periodic upkeep does."""
        self.sync(full=True)
        job = self.directory.begin_checkpoint()
        job.run()
        self.directory.finish_checkpoint(job)

    def remove_files(self, *, now_ms: int = 1) -> None:
        """Delete the files of removed segments, as the periodic upkeep does.

        Errors are ignored, since they only cost disk space.
        """
        for segment in self.log.take_retired(now_ms=now_ms):
            with contextlib.suppress(OSError):
                segment.remove_files()

    def read_all(self, *, bytes_max: int = 1 << 20) -> bytes:
        """Return all records from the log start to the log end."""
        offset, parts = self.log.log_start_offset, list[bytes]()
        while offset < self.log.log_end_offset:
            result = self.log.read(offset, bytes_max=bytes_max, end_offset=self.log.log_end_offset)
            assert result.end_offset > offset, (offset, result)
            parts += [bytes(part) for part in result.slices]
            offset = Offset(result.end_offset)
        return b"".join(parts)

    def files(self, suffix: str) -> list[Path]:
        """Return the partition's files whose names have this ending, in order."""
        directory = self.log.directory
        names = sorted(self.storage.names(directory))
        return [directory / name for name in names if name.endswith(suffix)]


def memory_broker(config: LogConfig = SMALL) -> Broker:
    storage = MemoryStorage()
    broker = Broker(storage, config=config)
    storage.sync_directory(Path("/"))
    return broker
