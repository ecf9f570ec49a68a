"""The periodic work on logs looks only where something changed."""

from __future__ import annotations

from odradek_broker.log.log_config import LogConfig
from odradek_protocol.identity import Offset, PartitionIndex
from tests.unit.log.material import (
    PATH,
    SMALL,
    TOPIC,
    TOPIC_ID,
    batch,
    memory_broker,
)
from tests.unit.log.test_log_directory import due_flushes


def test_only_logs_that_were_appended_to_are_looked_at_for_a_flush() -> None:
    broker = memory_broker(LogConfig())
    directory = broker.directory
    idle = directory.create(TOPIC, TOPIC_ID, PartitionIndex(1), LogConfig())
    broker.append()
    assert list(directory.due.unflushed) == [broker.log.id]
    assert due_flushes(directory, now_ms=60_000) == [broker.log]
    broker.sync()  # not a full one
    assert due_flushes(directory, now_ms=60_000) == [broker.log]
    broker.sync(full=True)
    assert due_flushes(directory, now_ms=10**9) == []
    assert not directory.due.unflushed
    broker.append()
    broker.sync(full=True)
    broker.append()
    broker.log.truncate_to(Offset(2))
    assert due_flushes(directory, now_ms=10**9) == []
    broker.append()
    idle.append(batch(0), now_ms=0)
    directory.delete(TOPIC_ID, PartitionIndex(1))
    assert due_flushes(directory, now_ms=60_000) == [broker.log]
    broker.kill_and_start()
    assert due_flushes(broker.directory, now_ms=60_000) == [broker.log]


def test_a_checkpoint_is_due_only_after_an_offset_changed() -> None:
    broker = memory_broker(SMALL)

    def written() -> bool:
        is_due = broker.directory.due.checkpoint
        job = broker.directory.begin_checkpoint()
        job.run()
        broker.directory.finish_checkpoint(job)
        assert not broker.directory.due.checkpoint
        return is_due

    def offsets() -> tuple[bytes, ...]:
        names = sorted(n for n in broker.storage.names(PATH) if n.endswith("checkpoint"))
        return tuple(broker.storage.read(PATH / name) for name in names)

    def set_high_watermark() -> None:
        broker.log.set_high_watermark(broker.log.log_end_offset)

    written()
    assert not written()
    broker.append(200)
    changes = [
        lambda: broker.sync(full=True),
        set_high_watermark,
        lambda: broker.log.advance_log_start(Offset(20)),
        lambda: broker.log.truncate_to(Offset(150)),
        lambda: broker.log.reset_to(Offset(300)),
        lambda: broker.directory.create(TOPIC, TOPIC_ID, PartitionIndex(1), SMALL),
        lambda: broker.directory.delete(TOPIC_ID, PartitionIndex(1)),
    ]
    for number, change in enumerate(changes):
        before = offsets()
        change()
        assert written(), number
        assert offsets() != before, number
        assert not written(), number


def test_a_checkpoint_that_was_not_written_stays_due() -> None:
    broker = memory_broker(SMALL)
    broker.append()
    broker.sync(full=True)
    job = broker.directory.begin_checkpoint()
    broker.log.truncate_to(Offset(0))  # lowers the file after the job began
    broker.directory.due.checkpoint = False
    job.run()
    broker.directory.finish_checkpoint(job)
    assert broker.directory.due.checkpoint
