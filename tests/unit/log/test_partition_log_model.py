"""The log is compared with a list of batches after random appends, restarts, truncations and
losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from odradek_broker.log.directory.restart_markers import RestartClass
from odradek_broker.log.log_config import LogConfig
from odradek_protocol.identity import LeaderEpoch, Offset
from tests.unit.log.material import Broker, batch, memory_broker


@dataclass(frozen=True, slots=True)
class Stored:
    base_offset: int
    end_offset: int
    epoch: int
    timestamp_ms: int
    data: bytes


class LogModel(RuleBasedStateMachine):
    """Applies the same operations to a log on a memory disk and to a plain list."""

    broker: Broker

    @initialize(
        segment_bytes=st.sampled_from([300, 1000, 5000]), interval=st.sampled_from([0, 200, 4096])
    )
    def begin(self, segment_bytes: int, interval: int) -> None:
        config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=interval, file_delete_delay_ms=0
        )
        self.broker = memory_broker(config)
        self.broker.checkpoint()
        self.stored: list[Stored] = []
        self.end = 0
        self.epoch = 0
        self.durable = 0
        self.torn = False  # by us, since the last checkpoint
        self.clock_ms = 1000

    # --- what changes both ----------------------------------------------------------------------

    @rule(
        sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 150)), min_size=1, max_size=4),
        gap=st.sampled_from([0, 0, 0, 3]),
        drift_ms=st.integers(-50, 200),
        retain=st.booleans(),
    )
    def append(self, sizes: list[tuple[int, int]], gap: int, drift_ms: int, retain: bool) -> None:
        parts = []
        for count, value_bytes in sizes:
            base = self.end + gap
            self.clock_ms = max(0, self.clock_ms + drift_ms)
            data = batch(
                base,
                count=count,
                leader_epoch=self.epoch,
                timestamp_ms=self.clock_ms,
                value_bytes=value_bytes,
            )
            self.stored.append(Stored(base, base + count, self.epoch, self.clock_ms, data))
            self.end = base + count
            parts.append(data)
        info = self.broker.log.append(b"".join(parts), now_ms=self.clock_ms, retain=retain)
        assert info.end_offset == self.end

    @rule()
    def lead(self) -> None:
        self.epoch += 1
        self.broker.log.assign_epoch(LeaderEpoch(self.epoch))

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        high_watermark = self.broker.log.high_watermark
        offset = data.draw(st.integers(high_watermark, self.end))
        self.broker.log.truncate_to(Offset(offset))
        dropped = [b for b in self.stored if b.end_offset > offset]
        self.stored = [b for b in self.stored if b.end_offset <= offset]
        self.end = min([offset, *(b.base_offset for b in dropped if b.base_offset < offset)])
        self.durable = min(self.durable, self.end)
        # A loss is remembered as the high watermark of before, which may lie within a later batch.
        self.torn |= self.end < high_watermark

    @rule(ahead=st.integers(0, 50))
    def reset(self, ahead: int) -> None:
        offset = self.end + ahead
        self.broker.log.reset_to(Offset(offset))
        self.stored, self.end, self.durable = [], offset, offset

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        log = self.broker.log
        log.set_high_watermark(log.log_end_offset)
        log.advance_log_start(Offset(data.draw(st.integers(log.log_start_offset, self.end))))
        log.apply_retention(now_ms=0)
        self.broker.remove_files(now_ms=1)

    @rule(full=st.booleans())
    def sync(self, full: bool) -> None:
        self.broker.sync(full=full)
        assert self.broker.log.durable_end_offset == self.end
        self.durable = self.end

    @rule()
    def checkpoint(self) -> None:
        self.broker.checkpoint()
        self.durable = self.end
        self.torn = False

    # --- new lives ------------------------------------------------------------------------------

    @rule()
    def stop_and_start(self) -> None:
        start = self.broker.log.log_start_offset
        self.broker.stop_and_start()
        assert self.broker.restart_class is RestartClass.CLEAN
        log = self.broker.log
        assert log.log_start_offset == min(start, log.log_end_offset)  # within a gap: as the end
        assert self.broker.report is not None
        assert self.broker.report.scanned_bytes == 0
        self.survives()
        self.durable = self.end
        self.torn = False

    @rule()
    def kill_and_start(self) -> None:
        self.broker.kill_and_start()
        assert self.broker.restart_class is RestartClass.PROCESS
        assert self.broker.report is not None
        assert self.torn or not self.broker.report.power_loss
        self.survives()

    @rule(seed=st.none() | st.integers(0, 1 << 32))
    def lose_power_and_start(self, seed: int | None) -> None:
        self.broker.lose_power_and_start(Random(seed) if seed is not None else None)
        assert self.broker.restart_class is RestartClass.POWER
        end = self.broker.log.log_end_offset
        synced = [b.end_offset for b in self.stored if b.end_offset <= self.durable]
        assert end >= max(synced, default=0), "a synced batch is gone"
        self.stored = [b for b in self.stored if b.end_offset <= end]
        self.end = end
        self.durable = min(self.durable, end)

    @rule(
        suffix=st.sampled_from([".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"]),
        damage=st.sampled_from(["lost", "empty", "torn", "noise"]),
        clean=st.booleans(),
    )
    def damage_and_restart(self, suffix: str, damage: str, clean: bool) -> None:
        storage = self.broker.storage
        if clean:
            self.broker.directory.close(broker_epoch=None)
        for path in self.broker.files(suffix):
            content = bytes(storage.read(path))
            if damage == "lost":
                storage.remove(path)
                continue
            file = storage.open(path)
            file.truncate(0 if damage == "empty" else len(content) * 2 // 3 | 1)  # within an entry
            if damage == "noise":
                file.pwrite(b"\x7f\x01\x02" * 7, 0)
            file.close()
        self.broker.kill_and_start()
        self.survives()

    @rule(cut=st.integers(1, 400))
    def tear_the_tail(self, cut: int) -> None:
        path = self.broker.files(".log")[-1]
        file = self.broker.storage.open(path)
        size = file.size_bytes()
        file.truncate(max(0, size - cut))
        file.sync()
        file.close()
        self.broker.kill_and_start()
        self.torn = True
        end = self.broker.log.log_end_offset
        assert end <= self.end
        self.stored = [b for b in self.stored if b.end_offset <= end]
        self.end = end
        self.durable = min(self.durable, end)

    def survives(self) -> None:
        """Return the log end after a restart: if a truncation left a gap at the end, it is the end of the last
        batch.
        """
        end = self.broker.log.log_end_offset
        assert max((b.end_offset for b in self.stored), default=0) <= end <= self.end
        self.end = end
        self.durable = min(self.durable, end)

    # --- what must be equal ---------------------------------------------------------------------

    def visible(self) -> list[Stored]:
        start = self.broker.log.log_start_offset
        return [b for b in self.stored if b.end_offset > start]

    @invariant()
    def bytes_are_equal(self) -> None:
        log = self.broker.log
        assert log.log_end_offset == self.end
        expected = b"".join(b.data for b in self.visible())
        assert self.broker.read_all() == expected
        assert self.broker.read_all(bytes_max=1) == expected

    @invariant()
    def epochs_are_those_of_the_batches(self) -> None:
        visible = self.visible()
        log = self.broker.log
        for first, second in pairwise(visible):
            if second.epoch != first.epoch:
                epoch, end_offset = log.epochs.end_of(LeaderEpoch(first.epoch), log.log_end_offset)
                assert epoch == first.epoch
                assert first.end_offset <= end_offset <= second.base_offset
        for stored in visible:
            assert log.epochs.at(Offset(stored.end_offset - 1)) == stored.epoch

    @invariant()
    def times_lead_to_the_first_such_record(self) -> None:
        log = self.broker.log
        for wanted in {self.clock_ms, self.clock_ms - 100, 0}:
            expected = next(
                (
                    (b.timestamp_ms + i, b.base_offset + i)
                    for b in self.visible()
                    for i in range(b.end_offset - b.base_offset)
                    if b.timestamp_ms + i >= wanted and b.base_offset + i >= log.log_start_offset
                ),
                None,
            )
            found = log.offset_for_timestamp(wanted)
            assert (found[:2] if found is not None else None) == expected

    @invariant()
    def descriptors_are_few(self) -> None:
        storage = self.broker.storage
        assert storage.handles <= 4 + 1, storage.handles  # type: ignore[attr-defined]


LogModel.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestLogAgainstModel = LogModel.TestCase


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_log_against_model_for_long() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        LogModel,
        settings=settings(max_examples=5000, stateful_step_count=40, deadline=None),
    )
