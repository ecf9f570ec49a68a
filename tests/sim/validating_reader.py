"""A consumer that waits for records at the broker, sends the epoch of the last record that it has read, and looks up
offsets by timestamp.

A broker whose log diverges from the records that the reader has read reports the divergence (KIP-595). Then the reader
asks the leader where the epoch of the reader's last record ends (KIP-320), because a broker that is only behind reports
a divergence, too. Only a partition that lost more copies than its durability survives may make its readers go back.
"""

from __future__ import annotations

from odradek_broker.replication.outcomes import OFFSET_EARLIEST, OFFSET_OF_MAX_TIMESTAMP
from odradek_protocol.identity import TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.sim.client_shell import Call, EndOfEpochCall, FetchCall, Response, TimeCall
from tests.sim.clients import ATTEMPT_US, Consumer, Hist
from tests.sim.cluster import Cluster
from tests.sim.history import Lookup, WentBack
from tests.sim.machine import WALL_BEGINS_MS
from tests.sim.scheduler import MS

WAIT_MS_MAX = 3_000
BYTES_MIN = (1, 1, 300)


class ValidatingReader(Consumer):
    """A Consumer whose fetches wait at the broker, and whose position has a leader epoch."""

    patience_us = WAIT_MS_MAX * MS + ATTEMPT_US

    def __init__(
        self,
        cluster: Cluster,
        history: Hist,
        client_id: int,
        partition: TopicIdPartition,
        *,
        pace_us: int,
    ) -> None:
        super().__init__(cluster, history, client_id, partition, pace_us=pace_us)
        self._last_epoch = -1  # leader epoch of the record before the position
        self._last_value = -1
        self._must_validate = False
        self._asked: Call | None = None

    def _call(self, call_id: int, leader_epoch: int) -> Call:
        self._asked = self._next_call(call_id, leader_epoch)
        return self._asked

    def _next_call(self, call_id: int, leader_epoch: int) -> Call:
        chance = self.scheduler.chance
        if self._last_epoch >= 0 and (self._must_validate or chance(0.05)):
            return EndOfEpochCall(
                call_id=call_id,
                partition=self._partition,
                epoch=self._last_epoch,
                leader_epoch=leader_epoch,
            )
        if chance(0.15):
            return TimeCall(
                call_id=call_id,
                partition=self._partition,
                timestamp_ms=self._time(),
                leader_epoch=leader_epoch,
            )
        return FetchCall(
            call_id=call_id,
            partition=self._partition,
            offset=self.position,
            leader_epoch=leader_epoch,
            last_epoch=self._last_epoch,
            last_value=self._last_value,
            wait_ms=self.scheduler.between(1, WAIT_MS_MAX),
            bytes_min=self.scheduler.random.choice(BYTES_MIN),
        )

    def _time(self) -> int:
        if self.scheduler.chance(0.3):
            return self.scheduler.random.choice((OFFSET_EARLIEST, OFFSET_OF_MAX_TIMESTAMP))
        return WALL_BEGINS_MS + self.scheduler.between(0, self.scheduler.now_us // MS)

    def _taken(self, answer: Response) -> None:
        if self._waiting is None or answer.call_id != self._waiting[0]:
            return
        call, before = self._asked, self.position
        if answer.error_code is not ErrorCode.NONE or isinstance(call, FetchCall):
            super()._taken(answer)
            if self.position != before:
                self._last_epoch = answer.last_epoch
                self._last_value = answer.records[-1][1] if answer.records else -1
            if answer.diverges:
                self.scheduler.counters["diverging fetches"] += 1
                self._must_validate = True
                self._drop()
            return
        self._waiting = None
        if isinstance(call, EndOfEpochCall):
            self._validated(answer)
        elif isinstance(call, TimeCall):
            self.history.lookups.append(
                Lookup(
                    client=self.client_id,
                    partition=self._partition,
                    timestamp_ms=call.timestamp_ms,
                    offset=answer.offset,
                    found_ms=answer.timestamp_ms,
                    log_start=answer.log_start,
                )
            )

    def _validated(self, answer: Response) -> None:
        if answer.offset < 0:
            self._drop()  # the broker does not know the epoch yet
            return
        self.scheduler.counters["epochs validated"] += 1
        self._must_validate = False
        end = answer.offset
        if end >= self.position:
            return
        self.history.went_back.append(
            WentBack(
                client=self.client_id,
                partition=self._partition,
                position=self.position,
                end_offset=end,
            )
        )
        self.scheduler.counters["readers that had to go back"] += 1
        self.position = end
        self._last_epoch = answer.last_epoch
        self._last_value = -1
