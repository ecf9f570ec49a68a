"""A start reads only files that a partition's directory has."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek_protocol.identity import Offset
from odradek_protocol.records.control import ControlType, encode_marker
from tests.unit.log.material import SMALL, memory_broker
from tests.worlds.memory_storage import MemoryStorage


@pytest.mark.parametrize("end", ["kill", "power"])
def test_a_start_makes_three_calls_for_a_log_in_which_nothing_was_ever_written(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker has thousands of such logs, and after a kill it is ready when all of them are open."""
    broker = memory_broker(SMALL)
    job = broker.log.begin_sync(full=True)  # so that the log survives the loss of power
    assert job is not None
    job.run()
    for path in broker.files(""):
        if path.name not in ("partition.metadata", "00000000000000000000.log"):
            broker.storage.remove(path)
    directory = broker.log.directory
    broker.storage.sync_directory(directory)
    calls: list[tuple[str, str]] = []

    def watch(operation: str) -> None:
        original = getattr(MemoryStorage, operation)

        def called(storage: MemoryStorage, path: Path, **options: bool) -> object:
            if path.is_relative_to(directory):
                calls.append((operation, path.name))
            return original(storage, path, **options)

        monkeypatch.setattr(MemoryStorage, operation, called)

    for operation in ("open", "read", "names", "exists", "size_bytes", "remove", "sync_directory"):
        watch(operation)
    if end == "kill":
        broker.kill_and_start()
    else:
        broker.lose_power_and_start()
    assert calls == [
        ("read", "partition.metadata"),
        ("names", directory.name),
        ("size_bytes", "00000000000000000000.log"),
    ]
    monkeypatch.undo()
    written = broker.append(3)
    assert broker.read_all() == written


def test_an_abort_below_the_recovery_point_of_the_active_segment_is_known_after_a_kill() -> None:
    """Recovery replays no batch from below the recovery point, so it depends on the segment's transaction index."""
    broker = memory_broker(SMALL)
    broker.append(2, producer_id=5, producer_epoch=1, base_sequence=0, transactional=True)
    marker = encode_marker(
        ControlType.ABORT,
        producer_id=5,
        producer_epoch=1,
        coordinator_epoch=0,
        timestamp_ms=9000,
        base_offset=broker.log.log_end_offset,
        leader_epoch=0,
    )
    broker.log.append(marker, now_ms=0)
    broker.log.set_high_watermark(broker.log.log_end_offset)
    broker.checkpoint()
    before = broker.log.aborted_transactions(Offset(0), Offset(3))
    assert len(before) == 1
    broker.kill_and_start()
    assert broker.log.segment_count == 1
    assert broker.log.aborted_transactions(Offset(0), Offset(3)) == before
