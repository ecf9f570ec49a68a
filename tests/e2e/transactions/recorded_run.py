"""Runs recorded clients on a real cluster, and checks their history at the end.

The run knows only the bootstrap address of the cluster, so it can check both Odradek and Apache
Kafka.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import admin

from tests.e2e.transactions.recorded_client import FATAL_STATUS, PARTITIONS, TIMEOUT_MS
from tests.sim.history import Violation
from tests.sim.transactions.history_checker import (
    CommittedPoll,
    Fate,
    FinalRead,
    GroupPartition,
    OffsetFetch,
    Takeover,
    Transaction,
    TransactionHistory,
    check,
)

QUIET_S_MAX: Final = TIMEOUT_MS / 1_000 + 30
"""Once all servers run, every client must make progress within the longest time-out and 30 s."""
ROLES: Final = {"bank1": "bank", "bank2": "bank", "copier1": "copier", "copier2": "copier"}
CALL_S: Final = 20.0
Place = tuple[str, int]


@dataclass
class RecordedRun:
    """The clients of one pair of topics, which record their events in files of `directory`.

    Use `recording`.
    """

    bootstrap: str
    name: str
    directory: Path
    lives: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, client: str) -> None:
        """Start a new process of a client."""
        self.lives[client] += 1
        process = f"{client}.{self.lives[client]}"
        command = [
            sys.executable,
            "-m",
            "tests.e2e.transactions.recorded_client",
            ROLES.get(client, "reader"),
            self.bootstrap,
            self.name,
            process,
            str(self.directory / process),
        ]
        self.processes[client] = subprocess.Popen(command)

    def kill(self, client: str) -> None:
        """Kill a client (SIGKILL)."""
        self.processes[client].kill()
        self.processes[client].wait()

    def start_again_what_gave_up(self) -> None:
        for client, process in list(self.processes.items()):
            status = process.poll()
            if status is not None:
                assert status == FATAL_STATUS, f"{client} ended with {status}"
                self.start(client)

    def committed(self, client: str) -> int:
        """Return how many commits were confirmed to the processes of a client."""
        return sum(
            event["event"] == "told" and event["fate"] == "committed"
            for path in self.directory.glob(f"{client}.*")
            for event in events(path)
        )

    def count(self, event: str) -> int:
        """Return how many events with this name all processes have recorded."""
        paths = self.directory.iterdir()
        return sum(recorded["event"] == event for path in paths for recorded in events(path))

    def wait_for_progress(self, commits: int = 15) -> None:
        """Wait until the banks and the copiers have committed more.

        Raises:
            AssertionError: one of them did not commit within `QUIET_S_MAX`.
        """
        for role in ("bank", "copier"):
            clients = [client for client, of in ROLES.items() if of == role]
            target = sum(map(self.committed, clients)) + commits
            deadline_s = time.monotonic() + QUIET_S_MAX
            while (count := sum(map(self.committed, clients))) < target:
                assert time.monotonic() < deadline_s, f"{role} makes no progress at {count} commits"
                self.start_again_what_gave_up()
                time.sleep(0.2)

    def stop(self) -> None:
        """Kill all clients."""
        for client in self.processes:
            self.kill(client)

    def judge(self) -> list[Violation]:
        """Read all records after the clients were killed, and check the history against them."""
        places = [(f"{self.name}-{side}", n) for side in ("in", "out") for n in range(PARTITIONS)]
        self._wait_until_stable(places)
        shown = {place: self._final(place) for place in places}
        finals = {place: [read] for place, read in shown.items()}
        history = self.history()
        group = GroupPartition
        offsets = {
            group(self.name, (place.topic, place.partition)): max(place.offset, 0)
            for place in self._committed_offsets()
        }
        return check(history, finals, offsets)

    def history(self) -> TransactionHistory:
        """Read the files of all processes."""
        history = TransactionHistory()
        for path in sorted(self.directory.iterdir()):
            _read_process(path, history)
        return history

    def _consumer(self, isolation: str, group: str) -> ck.Consumer:
        return ck.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 0,
                "group.id": group,
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )

    def _wait_until_stable(self, places: list[Place]) -> None:
        """Wait until the last stable offset reaches the end, when all open transactions have timed
        out.
        """
        deadline_s = time.monotonic() + QUIET_S_MAX
        while any(self._ends(place)[0] < self._ends(place)[1] for place in places):
            assert time.monotonic() < deadline_s, "a last stable offset does not move"
            time.sleep(0.5)

    def _ends(self, place: Place) -> tuple[int, int]:
        """Return the last stable offset and the high watermark."""
        ends = []
        for isolation in ("read_committed", "read_uncommitted"):
            consumer = self._consumer(isolation, f"{self.name}-ends")
            try:
                ends.append(consumer.get_watermark_offsets(ck.TopicPartition(*place), CALL_S)[1])
            finally:
                consumer.close()
        return ends[0], ends[1]

    def _final(self, place: Place) -> FinalRead:
        last_stable, end = self._ends(place)
        committed, everything = (
            self._read(place, isolation) for isolation in ("read_committed", "read_uncommitted")
        )
        return FinalRead(
            committed=committed, everything=everything, last_stable=last_stable, log_end=end
        )

    def _read(self, place: Place, isolation: str) -> dict[int, str]:
        consumer = self._consumer(isolation, f"{self.name}-{isolation}")
        consumer.assign([ck.TopicPartition(*place, 0)])
        values: dict[int, str] = {}
        deadline_s = time.monotonic() + QUIET_S_MAX
        try:
            while True:
                assert time.monotonic() < deadline_s, f"{place} cannot be read to its end"
                for message in consumer.consume(1_000, 1.0):
                    error = message.error()
                    if error is None:
                        values[message.offset()] = json.loads(message.value())["value"]
                    elif error.code() == ck.KafkaError._PARTITION_EOF:
                        return values
        finally:
            consumer.close()

    def _committed_offsets(self) -> list[ck.TopicPartition]:
        consumer = self._consumer("read_committed", self.name)
        try:
            wanted = [ck.TopicPartition(f"{self.name}-in", n) for n in range(PARTITIONS)]
            committed: list[ck.TopicPartition] = consumer.committed(wanted, CALL_S)
            return committed
        finally:
            consumer.close()


def events(path: Path) -> Iterator[dict[str, Any]]:
    """Return the events of a file, without a last line that SIGKILL may have cut."""
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def _read_process(path: Path, history: TransactionHistory) -> None:
    transactions: dict[int, Transaction] = {}
    for event in events(path):
        at = event["at"]
        match event["event"]:
            case "takeover":
                history.takeovers.append(
                    Takeover(
                        transactional_id=event["id"],
                        process=event["process"],
                        asked_at=event["asked"],
                        told_at=at,
                    )
                )
            case "begin":
                transaction = Transaction(
                    transactional_id=event["id"],
                    process=event["process"],
                    group=event.get("group", ""),
                    began_at=at,
                )
                transactions[event["number"]] = transaction
                history.transactions.append(transaction)
            case "send":
                transaction = transactions[event["number"]]
                value = event["value"]
                transaction.values[event["topic"], event["partition"]].append(value)
                if "copy_of" in event:
                    transaction.copies[value] = event["copy_of"]
                if "amount" in event:
                    history.amounts[value] = event["amount"]
            case "offsets":
                transaction = transactions[event["number"]]
                for topic, partition, offset in event["offsets"]:
                    place = GroupPartition(transaction.group, (topic, partition))
                    transaction.offsets[place] = offset
            case "commit":
                transactions[event["number"]].commit_asked_at = at
            case "told":
                transaction = transactions[event["number"]]
                transaction.fate, transaction.told_at = Fate(event["fate"]), at
            case "fetch":
                place = GroupPartition(event["group"], (event["topic"], event["partition"]))
                history.fetches.append(
                    OffsetFetch(
                        place=place,
                        offset=event["offset"],
                        asked_at=event["asked"],
                        ended_at=at,
                    )
                )
            case "poll":
                history.polls.append(
                    CommittedPoll(
                        reader=event["reader"],
                        partition=(event["topic"], event["partition"]),
                        position=event["position"],
                        next_position=event["next"],
                        records=tuple((offset, value) for offset, value in event["records"]),
                        ended_at=at,
                    )
                )


def create_topics(bootstrap: str, name: str, replicas: int) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        admin.NewTopic(
            f"{name}-{side}",
            PARTITIONS,
            replicas,
            config={"min.insync.replicas": str(replicas // 2 + 1)},
        )
        for side in ("in", "out")
    ]
    for created in client.create_topics(topics).values():
        created.result(60)


@contextmanager
def recording(
    bootstrap: str, name: str, directory: Path, *, replicas: int = 3
) -> Iterator[RecordedRun]:
    """Run two banks, two copiers and a reader.

    At the end they are killed and their history is checked.
    """
    create_topics(bootstrap, name, replicas)
    run = RecordedRun(bootstrap, name, directory)
    try:
        for client in (*ROLES, "reader1"):
            run.start(client)
        run.wait_for_progress()
        yield run
        run.wait_for_progress()
    finally:
        run.stop()
    violations = run.judge()
    assert not violations, "\n".join(str(violation)[:400] for violation in violations[:5])
    commits = sum(map(run.committed, ROLES))
    processes, hung = sum(run.lives.values()), run.count("hung")
    print(f"{commits} commits confirmed, {processes} processes, {hung} ended in a call that hung")


Fault = Callable[[RecordedRun], None]
