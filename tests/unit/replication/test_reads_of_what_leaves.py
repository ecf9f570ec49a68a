"""While retention deletes the segment that is read from disk, read_committed consumers still get no
aborted records.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_reads import ReadPlan
from odradek_broker.replication.outcomes import ReadOutcome
from odradek_protocol.identity import Offset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.control import ControlType, encode_marker
from tests.unit.log.material import Broker, memory_broker
from tests.unit.replication.memory_table import FOR_EVER_MS, OWN, partition_of, table_of
from tests.worlds.memory_storage import MemoryStorage

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=0)


def aborted_and_old() -> Broker:
    """Return a log whose first segment has two records of an aborted transaction and its marker;
    none of them is in memory.
    """
    broker = memory_broker(CONFIG)
    broker.append(2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    marker = encode_marker(
        ControlType.ABORT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=1000,
        base_offset=2,
        leader_epoch=0,
    )
    broker.log.append(marker, now_ms=0)
    broker.append(10)
    broker.append(10)
    broker.stop_and_start()
    broker.log.set_high_watermark(broker.log.log_end_offset)
    assert isinstance(broker.storage, MemoryStorage)
    broker.storage.is_hot = False
    return broker


async def outcome_of(read: ReadOutcome | Awaitable[ReadOutcome]) -> ReadOutcome:
    assert not isinstance(read, ReadOutcome), "it is cold"
    return await read


@pytest.mark.parametrize("expires", [False, True])
async def test_aborted_records_stay_apart_while_their_segment_expires(
    expires: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = aborted_and_old()
    original = ReadPlan.run

    def run(plan: ReadPlan, **how: Any) -> Any:
        result = original(plan, **how)
        if expires:
            assert broker.log.apply_retention(now_ms=FOR_EVER_MS) > 0
        return result

    monkeypatch.setattr(ReadPlan, "run", run)
    async with table_of(broker, 1, leader=OWN) as (table, _):
        partition = partition_of(table)
        outcome = await outcome_of(partition.read(Offset(0), bytes_max=1, read_committed=True))
    if expires:
        assert outcome.error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert outcome.log_start_offset == broker.log.log_start_offset > 0
        assert not outcome.records
    else:
        assert outcome.error is ErrorCode.NONE
        assert outcome.records
        assert [(one.producer_id, one.first_offset) for one in outcome.aborted or ()] == [(7, 0)]
