"""A read_committed reader, which reads all partitions of two topics from their start, at leaders and followers."""

from __future__ import annotations

from typing import Final

from odradek_protocol.identity import TopicIdPartition
from tests.sim.cluster import Cluster
from tests.sim.transactions.copier import COPIES_TOPIC
from tests.sim.transactions.history_checker import CommittedPoll, TransactionHistory
from tests.sim.transactions.transaction_client import Caller
from tests.sim.transactions.transaction_shell import CommittedRead
from tests.sim.transactions.transactional_producer import (
    DATA_TOPIC,
    ClientMachine,
    partitions_of,
)

READ_TOPICS: Final = (DATA_TOPIC, COPIES_TOPIC)


class CommittedReader(ClientMachine):
    """A reader whose process restarts at random times, and then reads everything again."""

    def __init__(self, cluster: Cluster, client_id: int, history: TransactionHistory) -> None:
        super().__init__(cluster, client_id)
        self._history = history

    async def _run(self, caller: Caller, name: str) -> None:
        positions = {
            TopicIdPartition(place.topic_id, place.partition): 0
            for topic in READ_TOPICS
            for place in partitions_of(self.cluster, topic)
        }
        while not self.is_stopped:
            for partition, position in positions.items():
                read = await caller.read(partition, position)
                if not isinstance(read, CommittedRead):
                    continue
                positions[partition] = read.next_offset
                self._history.polls.append(
                    CommittedPoll(
                        reader=name,
                        partition=partition,
                        position=position,
                        next_position=read.next_offset,
                        records=read.records,
                        ended_at=self.scheduler.now_us,
                    )
                )
            await caller.pause(20, 200)
