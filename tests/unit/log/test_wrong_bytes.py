"""If the disk changes one byte, at any position, the log still starts, and all other batches can be
read.
"""

from __future__ import annotations

import contextlib

import pytest

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.segments.batch_walk import walk_headers
from odradek_broker.log.storage import StorageFailed
from odradek_protocol.identity import BrokerEpoch, Offset
from odradek_protocol.records.batch_header import BATCH_LENGTH_AT, HEADER_BYTES
from odradek_protocol.records.builder import encode_batch
from odradek_protocol.records.codec import Record
from tests.unit.log.material import Broker, batch, memory_broker
from tests.worlds.memory_storage import MemoryStorage

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=150, file_delete_delay_ms=0)
WRONG_BITS = 0x41


def stopped_broker(*, is_clean: bool) -> tuple[Broker, list[bytes]]:
    broker = memory_broker(CONFIG)
    batches = [
        broker.append(2, leader_epoch=number // 3, value_bytes=20, timestamp_ms=1000 + 10 * number)
        for number in range(7)
    ]
    broker.log.set_high_watermark(Offset(14))
    broker.checkpoint()
    if is_clean:
        broker.directory.close(broker_epoch=BrokerEpoch(1))
    else:
        assert isinstance(broker.storage, MemoryStorage)
        broker.storage.kill_process()
    return broker, batches


def batches_from_each_offset(broker: Broker) -> list[bytes]:
    """Read one batch from every second offset on, and return the batches."""
    end = broker.log.log_end_offset
    results = [
        broker.log.read(Offset(start), bytes_max=1, end_offset=end) for start in range(0, end, 2)
    ]
    return [bytes(part) for result in results for part in result.slices]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
def test_a_wrong_byte_beside_the_log_hides_no_batch(suffix: str, is_clean: bool) -> None:
    broker, batches = stopped_broker(is_clean=is_clean)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    count = 0
    for path in broker.files(suffix):
        content = bytes(storage.inode(path).data)
        for at in range(len(content)):
            broker, batches = stopped_broker(is_clean=is_clean)
            storage = broker.storage
            assert isinstance(storage, MemoryStorage)
            storage.inode(path).data[at] ^= WRONG_BITS
            broker.start()
            assert batches_from_each_offset(broker) == batches, (path.name, at)
            broker.append(1, leader_epoch=9)
            count += 1
    assert count


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_wrong_byte_in_a_header_is_told_or_read_as_it_is(is_clean: bool) -> None:
    broker, batches = stopped_broker(is_clean=is_clean)
    heads = [
        (number, at)
        for number in range(len(broker.files(".log")))
        for at in batch_positions(broker, number)
    ]
    assert len(heads) == len(batches)
    heads.pop()  # where the log ends no other batch contradicts it
    for number, at in [(number, at + byte) for number, at in heads for byte in range(HEADER_BYTES)]:
        broker, batches = stopped_broker(is_clean=is_clean)
        storage = broker.storage
        assert isinstance(storage, MemoryStorage)
        storage.inode(broker.files(".log")[number]).data[at] ^= WRONG_BITS
        broker.start()
        end = broker.log.log_end_offset
        assert broker.report is not None
        assert end == 14 or broker.report.power_loss, (number, at)
        with contextlib.suppress(StorageFailed):
            found = broker.read_all()  # each read goes on, or fails
            assert len(found) <= sum(map(len, batches)), (number, at)
            broker.append(1, leader_epoch=9)
            assert broker.log.log_end_offset == end + 1


def batch_positions(broker: Broker, number: int) -> list[int]:
    """Return the positions of the batches in one of the segments' files."""
    file = broker.storage.open(broker.files(".log")[number])
    try:
        return [position for position, _ in walk_headers(file, 0, file.size_bytes())]
    finally:
        file.close()


def test_an_index_that_leads_to_what_looks_like_a_long_batch_hides_nothing() -> None:
    """A producer chose a value that looks like a batch header, and the disk has changed an index
    entry so that it points there.
    """
    broker = memory_broker(LogConfig(index_interval_bytes=0))
    lookalike = bytearray(batch(1)[:HEADER_BYTES])
    lookalike[BATCH_LENGTH_AT : BATCH_LENGTH_AT + 4] = b"\x7f\xff\xff\xff"
    for offset in range(3):
        record = Record(None, b"v" * 50 + lookalike, timestamp_ms=offset)
        broker.log.append(encode_batch([record], base_offset=offset, leader_epoch=0), now_ms=0)
    expected = broker.read_all()
    broker.directory.close(broker_epoch=BrokerEpoch(1))
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    data = bytes(storage.inode(broker.files(".log")[0]).data)
    within_the_second = data.index(lookalike, len(data) // 3)
    index = storage.inode(broker.files(".index")[0]).data
    index[4:8] = within_the_second.to_bytes(4, "big")
    broker.start()
    assert broker.read_all(bytes_max=1) == expected
