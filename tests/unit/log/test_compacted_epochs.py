"""The leader epochs of a compacted log: compaction removes the first batches of an epoch, or all of
them, but a follower that differs must still be told where the epoch began.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek_broker.leader_epochs import LeaderEpochs
from odradek_broker.log.directory.partition_files import encode_epochs, read_epochs, write_epochs
from odradek_protocol.identity import LeaderEpoch, Offset
from tests.unit.log.compacted_logs import CONFIG, compact, put
from tests.unit.log.material import Broker, memory_broker


def compacted() -> tuple[Broker, list[tuple[LeaderEpoch, Offset]]]:
    """Return a broker whose log has lost the records of epochs 1 and 2 to compaction, and the epochs
    that the log had before. The recovery point is not on disk, so a start scans the whole log.
    """
    broker = memory_broker(CONFIG)
    for number in range(4):
        put(broker, (b"a%d" % number, b"." * 100), leader_epoch=0)
    for epoch in (1, 2, 3):
        for _ in range(3):
            put(broker, (b"k", b"." * 100), leader_epoch=epoch)
    while broker.log.segment_count < 6:
        put(broker, (b"f%d" % broker.log.log_end_offset, b"." * 100), leader_epoch=3)
    epochs = broker.log.epochs.entries()
    assert [int(epoch) for epoch, _ in epochs] == [0, 1, 2, 3]
    assert compact(broker) is not None
    return broker, epochs


@pytest.mark.parametrize(
    "restart", [Broker.kill_and_start, Broker.lose_power_and_start, Broker.stop_and_start]
)
def test_a_start_keeps_the_first_offset_of_an_epoch_whose_batches_were_compacted(
    restart: Callable[[Broker], None],
) -> None:
    broker, epochs = compacted()
    restart(broker)
    assert broker.log.epochs.entries() == epochs
    (_, second) = epochs[1]
    assert broker.log.epochs.end_of(LeaderEpoch(0), broker.log.log_end_offset)[1] == second


def test_an_entry_that_disagrees_with_the_batches_is_dropped() -> None:
    broker = memory_broker(CONFIG)
    for epoch in (0, 0, 2, 2):
        put(broker, (b"%d" % broker.log.log_end_offset, b"."), leader_epoch=epoch)
    # A truncation that a kill interrupted may leave such a checkpoint: epoch 1 began at 1, or at 3.
    for entries in ([(0, 0), (1, 1), (2, 2)], [(0, 0), (1, 3)], [(0, 0), (2, 3)], [(0, 0), (5, 3)]):
        write_epochs(broker.storage, broker.log.directory, encode_epochs(LeaderEpochs(entries)))
        broker.kill_and_start()
        assert broker.log.epochs.entries() == [(0, 0), (2, 2)], entries


def test_entries_above_the_log_end_are_deleted_at_the_start() -> None:
    """Otherwise, batches that are appended there could confirm them after the next kill."""
    broker = memory_broker(CONFIG)
    put(broker, (b"a", b"."), leader_epoch=0)
    write_epochs(
        broker.storage, broker.log.directory, encode_epochs(LeaderEpochs([(0, 0), (1, 5)]))
    )
    broker.kill_and_start()
    written = read_epochs(broker.storage, broker.log.directory)
    assert written is not None
    assert written.entries() == [(0, 0)]
