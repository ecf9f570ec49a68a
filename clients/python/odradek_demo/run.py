"""Runs the demo: produce, kill, restart, read back, compare.

Two processes are killed with SIGKILL while records are produced with acks=all: after half of the records the broker
that leads the most partitions, and a little later the active controller. Both are started again while records are
produced. The demo succeeds only if no record is lost, duplicated or out of order within its key, both kills took
effect, and no pause between acknowledgements was longer than PAUSE_S_MAX.

In addition, one of the three members of a group is killed with SIGKILL, records are produced over REST, and a Spark
pipeline writes windows back exactly once although its driver is killed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from odradek.admin.admin import Admin
from odradek.client import Client
from odradek.embedded import EmbeddedCluster
from odradek.errors import OdradekError
from odradek.producer.delivery import DeliveryFuture
from odradek_demo.flights import Flight
from odradek_demo.ledger import AcknowledgementLog, ReadBack, ReplicaComparison, compare_replicas
from odradek_demo.live_pipeline import LivePipeline, PipelineOutcome

TOPIC = "flights"
DELAYS_TOPIC = "flights-delays"
PARTITIONS = 6
REPLICAS = 3
SEGMENT_BYTES = 4 * 1024 * 1024
PAUSE_S_MAX = 6.0
REST_RECORDS = 2_000
CLUSTER_SETTINGS = (  # With these settings, the group soon notices that a member was killed.
    "group.consumer.session.timeout.ms=6000",
    "group.consumer.heartbeat.interval.ms=1000",
)
FLUSH_S_MAX = 60.0
_CONTROLLER_KILL_AFTER_S = 3.0
_RESTART_AFTER_S = 3.0
_SETTLE_S_MAX = 60.0
_PACE_S = 0.01

Progress = Callable[[str, int, int], None]  # (stage, done, total)


@dataclass(slots=True, kw_only=True)
class Kill:
    """The kill of one process, and how the cluster reacted."""

    name: str
    pid_before: int
    pid_after: int = 0
    # Leader epochs by partition. For a controller: {0: term}.
    epochs_before: dict[int, int] = field(default_factory=dict)
    epochs_after: dict[int, int] = field(default_factory=dict)
    at_record: int = 0

    @property
    def is_real(self) -> bool:
        """Whether the kill took effect: another process is running now, and the epochs have increased."""
        return (
            self.pid_after not in (0, self.pid_before)
            and bool(self.epochs_after)
            and all(self.epochs_after[p] > e for p, e in self.epochs_before.items())
        )


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The results of the demo, for the report."""

    acknowledgements: AcknowledgementLog
    read_back: ReadBack
    failed_sends: list[str]
    produce_s: float
    consume_s: float
    broker_kill: Kill
    controller_kill: Kill
    replicas: list[ReplicaComparison]
    values: list[bytes]
    group: GroupOutcome
    pipeline: PipelineOutcome
    broker_resident_bytes: int
    """The resident memory of the largest broker at the end."""

    def faults(self) -> list[str]:
        """Return the reasons why the demo failed; empty if it succeeded."""
        read, acknowledgements = self.read_back, self.acknowledgements
        checks = {
            f"{len(self.failed_sends)} sends failed: {self.failed_sends[:1]}": not self.failed_sends,
            "not every record was acknowledged": acknowledgements.count == len(read.flights),
            f"{read.missing(acknowledgements)} acknowledged records are missing": read.missing(
                acknowledgements
            )
            == 0,
            f"{read.duplicates} records were read twice": read.duplicates == 0,
            f"{read.damaged + read.foreign} records differ from what was sent": not (
                read.damaged or read.foreign
            ),
            f"{read.out_of_order} records are out of order within their key": not read.out_of_order,
            "the checksum of the records read differs from that of the records sent": read.sha256()
            == read.source_sha256(),
            "the kill of the broker had no effect": self.broker_kill.is_real,
            "the kill of the controller had no effect": self.controller_kill.is_real,
            f"acknowledgements paused for {acknowledgements.longest_pause_s:.1f} s": (
                acknowledgements.longest_pause_s <= PAUSE_S_MAX
            ),
            f"the group did not share all partitions: {self.group}": self.group.is_well,
            f"the Spark pipeline: {self.pipeline.complaint}": self.pipeline.is_well,
            "replicas differ below the high watermark": all(r.is_identical for r in self.replicas),
            "a partition has fewer segments than its size requires": all(
                r.segments >= min(3, r.bytes_compared // SEGMENT_BYTES) for r in self.replicas
            ),
        }
        return [fault for fault, is_well in checks.items() if not is_well]


async def run_demo(
    cluster: EmbeddedCluster, flights: list[Flight], *, rate: int, progress: Progress
) -> Outcome:
    """Run the demo on a cluster that is ready."""
    async with Client(cluster.bootstrap) as client:
        for topic, partitions in ((TOPIC, PARTITIONS), (DELAYS_TOPIC, 2)):
            await client.admin.create_topic(
                topic,
                partitions=partitions,
                replication_factor=REPLICAS,
                configs={"min.insync.replicas": "2", "segment.bytes": str(SEGMENT_BYTES)},
            )
        acknowledgements = AcknowledgementLog.of(len(flights))
        failed: list[str] = []
        faults = _Faults(cluster, client.admin, at_record=len(flights) // 2)
        pipeline = LivePipeline(cluster.bootstrap, TOPIC, len(flights), target=DELAYS_TOPIC)
        await pipeline.start()
        try:
            by_rest = flights[: min(REST_RECORDS, len(flights) // 2)]
            acknowledgements.begin(time.monotonic())
            progress("produce over REST", 0, len(by_rest))
            failed += await asyncio.to_thread(
                send_by_rest, cluster.describe()["gateway"], TOPIC, by_rest
            )
            progress("produce over REST", len(by_rest), len(by_rest))
            began_s = time.monotonic()
            for flight in by_rest:
                acknowledgements.note(flight.sequence, began_s)
            async with _beside(faults.run()) as killing:
                by_sdk = flights[len(by_rest) :]
                await _produce(client, by_sdk, rate, acknowledgements, failed, faults, progress)
                produce_s = time.monotonic() - began_s
                await killing
            progress("catch up", 0, 1)
            await _wait_for_full_isr(client.admin)
            progress("catch up", 1, 1)
            await faults.note_epochs_after()
            began_s = time.monotonic()
            read_back, values = await _consume(client, flights, progress)
            consume_s = time.monotonic() - began_s
            replicas = await _compare(cluster, client, progress)
            progress("Spark pipeline", 0, 1)
            pipeline_outcome = await pipeline.finish(values)
            progress("Spark pipeline", 1, 1)
        finally:
            await pipeline.cancel()
        progress("group of 3", 0, 1)
        group = await run_group(client.admin, cluster.bootstrap, TOPIC, PARTITIONS)
        progress("group of 3", 1, 1)
    return Outcome(
        acknowledgements=acknowledgements,
        read_back=read_back,
        failed_sends=failed,
        produce_s=produce_s,
        consume_s=consume_s,
        broker_kill=faults.broker_kill,
        controller_kill=faults.controller_kill,
        replicas=replicas,
        values=values,
        group=group,
        pipeline=pipeline_outcome,
        broker_resident_bytes=max(broker.resident_bytes for broker in cluster.brokers.values()),
    )


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run `work` in a task beside the `async with` block. An error of one cancels the other, and is raised as it is,
    because the command prints such an error in one line, but an ExceptionGroup as a traceback.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks.create_task(work)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _produce(
    client: Client,
    flights: list[Flight],
    rate: int,
    log: AcknowledgementLog,
    failed: list[str],
    faults: _Faults,
    progress: Progress,
) -> None:
    async with client.producer(acks="all", linger_ms=5) as producer:
        began_s = time.monotonic()
        log.begin(began_s)
        first, total = flights[0].sequence, len(log.acknowledged)

        def on_delivery(sequence: int) -> Callable[[DeliveryFuture], None]:
            def note(future: DeliveryFuture) -> None:
                error = future.exception()
                if error is None:
                    log.note(sequence, time.monotonic())
                else:
                    failed.append(f"seq {sequence}: {error}")

            return note

        for flight in flights:
            due = first + int((time.monotonic() - began_s) * rate)
            while flight.sequence > due:
                await asyncio.sleep(_PACE_S)
                due = first + int((time.monotonic() - began_s) * rate)
                progress("produce", log.count, total)
            future = await producer.send(TOPIC, flight.value, key=flight.key)
            future.add_done_callback(on_delivery(flight.sequence))
            faults.note_sent(flight.sequence + 1)
        await producer.flush(FLUSH_S_MAX)
        progress("produce", log.count, total)


class _Faults:
    """Kills the busiest leader when `at_record` records are sent, and the active controller a little later. Restarts
    both.
    """

    def __init__(self, cluster: EmbeddedCluster, admin: Admin, *, at_record: int) -> None:
        self.sent = 0
        self._half_way = asyncio.Event()
        self.broker_kill = Kill(name="", pid_before=0)
        self.controller_kill = Kill(name="", pid_before=0)
        self._cluster = cluster
        self._admin = admin
        self._at_record = at_record

    def note_sent(self, records: int) -> None:
        """Record how many records were sent so far. When `at_record` records are sent, `run` kills the first
        process.
        """
        self.sent = records
        if records == self._at_record:
            self._half_way.set()

    async def run(self) -> None:
        await self._half_way.wait()
        description = await self._admin.describe_topic(TOPIC)
        leaders = Counter(p.leader_id for p in description.partitions)
        broker_id = leaders.most_common(1)[0][0]
        broker = self._cluster.brokers[broker_id]
        self.broker_kill = Kill(
            name=broker.name,
            pid_before=broker.pid,
            at_record=self.sent,
            epochs_before={
                p.partition: p.leader_epoch
                for p in description.partitions
                if p.leader_id == broker_id
            },
        )
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(_CONTROLLER_KILL_AFTER_S)
        described = await self._admin.describe_cluster()
        controller = self._cluster.controllers[described.active_controller_id]
        self.controller_kill = Kill(
            name=controller.name,
            pid_before=controller.pid,
            at_record=self.sent,
            epochs_before={0: described.controller_epoch},
        )
        await asyncio.to_thread(controller.kill)
        await asyncio.sleep(_RESTART_AFTER_S)
        for child, kill in ((controller, self.controller_kill), (broker, self.broker_kill)):
            child.start()
            kill.pid_after = child.pid
        for child in (controller, broker):
            await asyncio.to_thread(child.wait_ready, _SETTLE_S_MAX)

    async def note_epochs_after(self) -> None:
        description = await self._admin.describe_topic(TOPIC)
        now = {p.partition: p.leader_epoch for p in description.partitions}
        self.broker_kill.epochs_after = {p: now[p] for p in self.broker_kill.epochs_before}
        described = await self._admin.describe_cluster()
        self.controller_kill.epochs_after = {0: described.controller_epoch}


async def _wait_for_full_isr(admin: Admin) -> None:
    deadline_s = time.monotonic() + _SETTLE_S_MAX
    while True:
        description = await admin.describe_topic(TOPIC)
        if all(len(p.isr) == len(p.replicas) for p in description.partitions):
            return
        if time.monotonic() > deadline_s:
            lagging = {r for p in description.partitions for r in p.replicas if r not in p.isr}
            raise TimeoutError(
                f"replicas of broker {', '.join(map(str, sorted(lagging)))} are not in sync"
                f" {_SETTLE_S_MAX:.0f} s after the restart: run the demo again with --keep-data, and read the"
                " broker's log"
            )
        await asyncio.sleep(0.1)


async def _consume(
    client: Client, flights: list[Flight], progress: Progress
) -> tuple[ReadBack, list[bytes]]:
    read_back, values = ReadBack(flights=flights), []
    partitions = [(TOPIC, index) for index in range(PARTITIONS)]
    async with client.consumer() as consumer:
        ends = await consumer.end_offsets(partitions)
        total = sum(ends.values())
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while read_back.read < total:
            records = await consumer.getmany(timeout_ms=30_000, max_records=5_000)
            if not records:
                break
            for record in records:
                read_back.note(record.key, record.value or b"")
                values.append(record.value or b"")
            progress("consume", read_back.read, total)
    return read_back, values


async def _compare(
    cluster: EmbeddedCluster, client: Client, progress: Progress
) -> list[ReplicaComparison]:
    partitions = [(TOPIC, index) for index in range(PARTITIONS)]
    async with client.consumer() as consumer:
        ends = await consumer.end_offsets(partitions)
    directories = [cluster.broker_data_dir(i) for i in cluster.brokers]
    compared = []
    for done, (partition, end) in enumerate(sorted((p[1], e) for p, e in ends.items()), start=1):
        compared.append(
            await asyncio.to_thread(compare_replicas, directories, TOPIC, partition, end)
        )
        progress("compare replicas", done, PARTITIONS)
    return compared


GROUP = "demo"
MEMBERS = 3
_SETTLE_S = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """How the group shared the partitions before and after the kill."""

    before: list[int]  # The number of partitions of each member while all are alive.
    after: list[int]  # The number of partitions of each member after one was killed.
    killed_pid: int
    seconds: float  # The time from the kill until all partitions had an owner again.

    @property
    def is_well(self) -> bool:
        """Whether all partitions had an owner before and after the kill."""
        return (
            len(self.before) == MEMBERS
            and len(self.after) == MEMBERS - 1
            and (sum(self.before) == sum(self.after) > 0)
        )


async def run_group(admin: Admin, bootstrap: str, topic: str, partitions: int) -> GroupOutcome:
    """Start the group members as processes, wait until they share all partitions, kill one, and wait again."""
    members = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "odradek.cli.main", "consume", topic, "--group", GROUP),
            *("--bootstrap", bootstrap),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        for _ in range(MEMBERS)
    ]
    try:
        before = await _shares(admin, MEMBERS, partitions)
        members[0].send_signal(signal.SIGKILL)
        began_s = time.monotonic()
        after = await _shares(admin, MEMBERS - 1, partitions)
        seconds = time.monotonic() - began_s
    finally:
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                member.kill()
            await member.wait()
    return GroupOutcome(before=before, after=after, killed_pid=members[0].pid, seconds=seconds)


async def _shares(admin: Admin, members: int, partitions: int) -> list[int]:
    """Return the number of partitions of each member, as soon as `members` members own all partitions, or at the
    deadline.
    """
    deadline_s = time.monotonic() + _SETTLE_S
    shares: list[int] = []
    while time.monotonic() < deadline_s:
        try:
            described = await admin.describe_group(GROUP)
            shares = sorted((len(m.assignment) for m in described.members), reverse=True)
        except OdradekError:
            shares = []  # No member has joined yet, or the coordinator is changing.
        if len(shares) == members and sum(shares) == partitions and min(shares) > 0:
            return shares
        await asyncio.sleep(0.2)
    return shares


_BATCH = 500
_TYPE = "application/vnd.kafka.binary.v2+json"


def send_by_rest(gateway_url: str, topic: str, flights: Sequence[Flight]) -> list[str]:
    """Produce records in batches over REST, and return the errors of failed records."""
    where = urlsplit(gateway_url)
    assert where.hostname is not None, gateway_url
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    errors: list[str] = []
    try:
        for start in range(0, len(flights), _BATCH):
            batch = flights[start : start + _BATCH]
            records = [
                {
                    "key": None if f.key is None else base64.b64encode(f.key).decode(),
                    "value": base64.b64encode(f.value).decode(),
                }
                for f in batch
            ]
            connection.request(
                "POST",
                f"/topics/{topic}",
                json.dumps({"records": records}),
                {"Content-Type": _TYPE},
            )
            response = connection.getresponse()
            body = json.loads(response.read())
            if response.status != 200:
                errors.append(f"HTTP {response.status}: {body.get('message')}")
                continue
            errors += [str(offset["error"]) for offset in body["offsets"] if offset["error_code"]]
    finally:
        connection.close()
    return errors
