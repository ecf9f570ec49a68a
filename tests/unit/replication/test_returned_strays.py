"""A log that was set aside is used again, and the process dies before its next checkpoint: the next
start knows its offsets.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek_broker.log.directory.strays import STRAY_FILE
from odradek_broker.log.log_directory import LogDirectory
from odradek_protocol.identity import Offset
from tests.unit.log.material import PARTITION, TOPIC, TOPIC_ID, Broker, memory_broker
from tests.unit.replication.memory_table import CONFIG
from tests.unit.replication.test_stray_logs import US, filled


def returned(*, is_synced: bool) -> tuple[Broker, bytes]:
    """Return a log that was set aside and is in use again, which no checkpoint has recorded yet."""
    broker, written = filled()
    broker.log.advance_log_start(Offset(3))
    put_aside_and_return(broker, is_synced=is_synced)
    return broker, written


def put_aside_and_return(broker: Broker, *, is_synced: bool) -> None:
    directory = broker.directory
    stray = directory.put_aside(TOPIC_ID, PARTITION, reason="nobody claims it", now_ms=1)
    assert stray is not None
    checkpoint(directory)
    if is_synced:
        directory.strays.sync(stray)
        (stray,) = directory.strays
    job = directory.begin_return(stray, TOPIC)
    job.run()
    directory.finish_return(job, CONFIG)


def checkpoint(directory: LogDirectory) -> None:
    job = directory.begin_checkpoint()
    job.run()
    directory.finish_checkpoint(job)


@pytest.mark.parametrize("is_synced", [True, False])
def test_after_a_kill_the_offsets_are_those_at_which_it_was_put_aside(is_synced: bool) -> None:
    broker, written = returned(is_synced=is_synced)
    broker.kill_and_start()
    log = broker.log
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (3, 3, 5)
    assert written.endswith(broker.read_all())
    assert broker.report is not None
    assert broker.report.power_loss == ()
    assert broker.report.scanned_bytes == 0, "it was checkpointed before it left"
    assert broker.storage.exists(log.directory / STRAY_FILE)
    checkpoint(broker.directory)
    broker.kill_and_start()
    assert not broker.storage.exists(broker.log.directory / STRAY_FILE)
    assert broker.log.log_start_offset == 3


@pytest.mark.parametrize("is_synced", [True, False])
def test_after_a_power_loss_one_that_was_not_synced_is_read_from_its_first_byte(
    is_synced: bool,
) -> None:
    broker, written = returned(is_synced=is_synced)
    storage = broker.storage
    for path in (broker.path, broker.log.directory):
        storage.sync_directory(path)
    for name in storage.names(broker.log.directory):
        file = storage.open(broker.log.directory / name)
        file.sync()
        file.close()
    broker.lose_power_and_start()
    assert broker.report is not None
    assert broker.report.scanned_bytes == (0 if is_synced else len(written))
    assert broker.log.log_end_offset == 5


def test_its_name_outlives_a_power_loss_as_soon_as_it_is_in_use() -> None:
    broker, written = returned(is_synced=True)
    assert broker.log.durable_end_offset == 5
    broker.lose_power_and_start()
    assert broker.log.log_end_offset == 5
    assert written.endswith(broker.read_all())


def test_a_first_record_that_the_disk_lost_is_noticed_in_a_log_that_was_not_synced() -> None:
    broker = memory_broker(CONFIG)
    first = broker.append(1)
    broker.append(4)
    broker.log.set_high_watermark(Offset(3))
    broker.checkpoint()
    put_aside_and_return(broker, is_synced=False)
    storage = broker.storage
    (log,) = broker.files(".log")
    damage(broker, log, at=len(first) - 1)
    for path in (broker.path, broker.log.directory):
        storage.sync_directory(path)
    for name in storage.names(broker.log.directory):
        file = storage.open(broker.log.directory / name)
        file.sync()
        file.close()
    broker.lose_power_and_start()
    assert broker.log.log_end_offset == 0
    assert broker.report is not None
    assert broker.report.power_loss == (US,)


def damage(broker: Broker, path: Path, *, at: int) -> None:
    file = broker.storage.open(path)
    (byte,) = file.pread(1, at)
    file.pwrite(bytes([byte ^ 1]), at)
    file.close()
