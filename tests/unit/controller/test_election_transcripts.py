"""Runs each scenario of elections.txt line by line, and compares the state of the partition with
the text.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek_metadata_quorum.controller import leaders
from odradek_metadata_quorum.controller.requests import LogEnd, ReportLogEndsRequest
from odradek_protocol.identity import BrokerId, DirectoryId, TopicIdPartition
from odradek_protocol.metadata.records import RestartClass, UnregisterBroker
from tests.unit.controller.cluster import Cluster, told

ALL = {1, 2, 3}


class Story:
    """Three brokers, one partition, and the commands of a scenario."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.cluster.start(1, 2, 3)
        self.alive = set(ALL)
        self.ready = set(ALL)
        self.cluster.create(assignments=((1, 2, 3),), min_insync_replicas="2")

    def run(self, verb: str, *words: str) -> None:
        getattr(self, f"_{verb}")(*words)

    def _pass(self, duration_ms: str) -> None:
        step_ms = 50 if int(duration_ms) < 10_000 else 250
        end_ms = self.cluster.now_ms + int(duration_ms)
        while self.cluster.now_ms < end_ms:
            self.cluster.now_ms += step_ms
            for broker_id in sorted(self.alive):
                self.cluster.heartbeat(broker_id, want_fence=broker_id not in self.ready)
            self.cluster.tick()

    def _kill(self, broker: str) -> None:
        self.alive.discard(int(broker))
        self.cluster.break_stream(int(broker))
        self._pass("500")

    def _silence(self, broker: str) -> None:
        self.alive.discard(int(broker))
        self._pass("2950")
        assert self.cluster.state().leader == int(broker), "fenced before the session was over"
        self._pass("50")

    def _restart(self, broker: str, how: str) -> None:
        broker_id = int(broker)
        self.alive.add(broker_id)
        self.ready.discard(broker_id)
        match how:
            case "stale":
                self.cluster.register(broker_id, RestartClass.CLEAN, previous_broker_epoch=0)
            case "replaced":
                self.cluster.break_stream(broker_id)
                self.cluster.register(broker_id, RestartClass.CLEAN, directory=99)
            case "damaged":
                state = self.cluster.state()
                lost = frozenset({TopicIdPartition(state.topic_id, state.partition)})
                self.cluster.register(broker_id, RestartClass.PROCESS, lost_partitions=lost)
            case _:
                self.cluster.register(broker_id, RestartClass[how.upper()])

    def _unregister(self, broker: str) -> None:
        """Unregister a broker, as older releases did even if it had the only in-sync replica."""
        known = self.cluster.image.brokers[BrokerId(int(broker))]
        record = UnregisterBroker(broker_id=known.broker_id, broker_epoch=known.broker_epoch)
        self.cluster.decide(lambda work: work.write(record))

    def _ready(self, *brokers: str) -> None:
        self.ready |= set(map(int, brokers))
        self._pass("1500")  # two fences within a minute delay by 1 s

    def _isr(self, members: str) -> None:
        result = self.cluster.alter_partition(tuple(map(int, members.split(","))))
        assert getattr(result, "error", None) == 0, result

    def _recovered(self, broker: str) -> None:
        result = self.cluster.alter_partition((int(broker),), recovering=False)
        assert getattr(result, "error", None) == 0, result

    def _shutdown(self, broker: str) -> None:
        self.cluster.heartbeat(int(broker), want_shutdown=True)
        self.alive.discard(int(broker))

    def _min(self, minimum: str) -> None:
        assert self.cluster.set_config("min.insync.replicas", minimum, topic="t").is_good

    def _unclean(self, _: str) -> None:
        self.cluster.set_config("unclean.leader.election.enable", "true", topic="t")

    def _offline(self, broker: str) -> None:
        directory = DirectoryId(int(broker).to_bytes(16, "big"))
        self.cluster.heartbeat(int(broker), offline_directory_ids=(directory,))

    def _report(self, broker: str, end: str, how: str = "asked") -> None:
        last_epoch, log_end = map(int, end.split(":"))
        state = self.cluster.state()
        partition = TopicIdPartition(state.topic_id, state.partition)
        asked = self.cluster.heartbeat(int(broker)).report_log_ends
        assert (partition in asked) == (how == "asked"), asked
        self.cluster.decide(
            leaders.report_log_ends,
            ReportLogEndsRequest(
                broker_id=BrokerId(int(broker)),
                broker_epoch=self.cluster.epochs[int(broker)],
                partitions=(LogEnd(partition=partition, last_epoch=last_epoch, log_end=log_end),),
            ),
        )
        self._pass("250")


def scenarios() -> list[tuple[str, list[str]]]:
    text = Path(__file__).with_name("elections.txt").read_text()
    blocks = [block.splitlines() for block in text.split("scenario ")[1:]]
    return [(lines[0], [line for line in lines[1:] if line.strip()]) for lines in blocks]


@pytest.mark.parametrize(("name", "lines"), scenarios(), ids=[name for name, _ in scenarios()])
def test_transcript(name: str, lines: list[str]) -> None:
    story = Story()
    seen: list[str] = []
    for line in lines:
        if line.startswith("  "):
            continue
        story.run(*line.split())
        seen += [line, f"  {told(story.cluster.state())}"]
    assert seen == lines, name
