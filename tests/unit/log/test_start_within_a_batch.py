"""A new replica begins with the whole batch that contains the leader's log start offset (after
DeleteRecords).
"""

from __future__ import annotations

from odradek_protocol.identity import Offset
from tests.unit.log.material import batch, memory_broker


def test_an_empty_log_that_begins_lower_takes_the_whole_batch() -> None:
    broker = memory_broker()
    broker.log.reset_to(Offset(66))
    broker.log.reset_to(Offset(64))
    broker.log.append(batch(64, count=3, leader_epoch=4), now_ms=1)
    broker.log.set_high_watermark(Offset(67))
    broker.log.advance_log_start(Offset(66))
    broker.sync(full=True)
    broker.checkpoint()
    for restart in (lambda: None, broker.kill_and_start, broker.stop_and_start):
        restart()
        assert broker.log.log_start_offset == 66
        assert broker.log.log_end_offset == 67
        found = broker.log.read(Offset(66), bytes_max=1 << 20, end_offset=Offset(67))
        assert (found.start_offset, found.end_offset) in ((64, 67), (66, 67))
        assert b"".join(found.slices) == batch(64, count=3, leader_epoch=4)
