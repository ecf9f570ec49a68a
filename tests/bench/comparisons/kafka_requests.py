"""Compares Odradek with Apache Kafka by single requests: their rate, their latency, and the brokers' CPU time for each
request.

Each case is a load of `request_load.c`: connections that send one prepared frame again and again.
The client uses 5 to 10 us of CPU time for a request, most of it in the kernel, so nearly all CPU
time is left to the brokers. Where other processes share the machine, the CPU time for each request
varies less than the rate.
"""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.response_encoding import encode_message
from odradek_protocol.records.builder import BatchBuilder
from tests.bench.comparisons.kafka_cluster import KafkaCluster
from tests.bench.comparisons.odradek_cluster import OdradekCluster, OdradekHost
from tests.bench.processes import cpu_s

SOURCE: Final = Path(__file__).with_name("request_load.c")
TOPIC: Final = "requests"
PARTITIONS: Final = 16
RECORD_BYTES: Final = 100
GROUPS: Final = 32
MEMBERS: Final = 1000
TOPICS: Final = 1000
CONSUMERS: Final = 64
ATTEMPTS_MAX: Final = 200
CALM_ROUNDS: Final = 3
"""After this number of rounds of heartbeats without a new epoch, `CALM_PAUSE_S` apart, the assignment is complete.
Kafka computes assignments some time after the members have joined.
"""
CALM_PAUSE_S: Final = 1.0
_CLIENT: Final = b"bench"
Cluster = KafkaCluster | OdradekCluster | OdradekHost


class Load(NamedTuple):
    """The frame that each connection sends, and the position of an error code in the response.

    If `reopens` is set, each request has a new connection. If `goes_on` is set, a request depends on the previous
    response: eight bytes are copied from the first position in the response to the second position in the frame.
    `feeder` is another connection (port, frame, position of the error code); its requests do not count.
    """

    frames: Sequence[tuple[int, bytes]]  # port and frame
    error_at: int
    reopens: bool = False
    goes_on: tuple[int, int] = (-1, -1)
    feeder: tuple[int, bytes, int] | None = None

    def lines(self) -> str:
        """Return the input of the client."""
        end = f"{self.error_at} {self.goes_on[0]} {self.goes_on[1]}"
        lines = [f"{port} {int(self.reopens)} {end} {frame.hex()}" for port, frame in self.frames]
        if self.feeder is not None:
            port, frame, error_at = self.feeder
            lines.append(f"{port} 2 {error_at} -1 -1 {frame.hex()}")
        return "\n".join([*lines, ""])


def compiled(directory: Path) -> Path:
    """Compile the client, and return its path."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("the benchmark of requests needs a C compiler (cc)")
    program = directory / "request_load"
    subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
    return program


def measured(program: Path, side: Cluster, load: Load, seconds: float) -> dict[str, Any]:
    """Run a load against one side; the brokers' CPU time is counted after the warm-up."""
    command = [str(program), str(seconds)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(load.lines())
        process.stdin.close()
        assert process.stdout.readline() == "warm\n", "the load ended early"
        before_s = cpu_s(side.broker_pids)
        result: dict[str, Any] = json.loads(process.stdout.readline())
        used_s = cpu_s(side.broker_pids) - before_s
    if process.returncode or result["errors"] or not result["requests"]:
        raise RuntimeError(f"{side.name}: a load of requests failed: {result}")
    result["broker_cpu_us"] = round(used_s * 1e6 / result["requests"], 1)
    return result


class Requests:
    """The loads for one side. Each load creates its topics and groups in the cluster of that side."""

    def __init__(self, side: Cluster, *, nodes: int) -> None:
        self._side = side
        self._nodes = nodes
        self._fanned_out = 0
        self._ports = [int(address.rpartition(":")[2]) for address in side.bootstrap.split(",")]

    def prepare(self) -> None:
        """Create the topics that the loads use."""
        self._create([(TOPIC, PARTITIONS)])
        # The request for a coordinator creates `__consumer_offsets`.
        find = messages.FindCoordinatorRequest(key="crowd")
        self._until_done((self._ports[0], _request(find, 0)), 4)

    def produce(self, connections: int) -> Load:
        """Return a load that writes one record in each request, with acks=1, or with acks=all to three nodes."""
        leaders = self._leaders(TOPIC)
        frames = []
        for number in range(connections):
            index = number % PARTITIONS
            frames.append((leaders[index], self._produce_frame(TOPIC, index)))
        return Load(frames, _produce_error_at(TOPIC))

    def _produce_frame(self, topic: str, index: int) -> bytes:
        builder = BatchBuilder()
        builder.append(None, bytes(RECORD_BYTES), None, int(time.time() * 1000))
        batch = bytes(builder.build())
        body = struct.pack(">hhii", -1, 1 if self._nodes == 1 else -1, 30_000, 1)
        body += _string(topic) + struct.pack(">iii", 1, index, len(batch)) + batch
        return _frame(ApiKey.PRODUCE, 7, body)

    def fan_out(self) -> Load:
        """Return a load of consumers that all wait for the records of one partition. A producer writes one record after
        the other, each after the response to the previous one.
        """
        self._fanned_out += 1
        topic = f"fanned-out-{self._fanned_out}"
        self._create([(topic, 1)])
        (port,) = self._leaders(topic).values()
        head = struct.pack(">iiiibi", -1, 500, 1, 1 << 20, 0, 1) + _string(topic)
        body = head + struct.pack(">iiqi", 1, 0, 0, 1 << 20)
        frame = _frame(ApiKey.FETCH, 4, body)
        error_at = 4 + 4 + 4 + len(_string(topic)) + 4 + 4
        goes_on = (error_at + 2, len(frame) - 4 - 4 - 8)
        feeder = port, self._produce_frame(topic, 0), _produce_error_at(topic)
        return Load([(port, frame)] * CONSUMERS, error_at, goes_on=goes_on, feeder=feeder)

    def commit(self) -> Load:
        """Return a load of commits, each connection for a group without members."""
        topic = messages.OffsetCommitRequest.OffsetCommitRequestTopic
        partition = topic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata=""
        )
        frames = []
        error_at = 4 + 4 + 4 + len(_string(TOPIC)) + 4 + 4
        for number in range(GROUPS):
            request = messages.OffsetCommitRequest(
                group_id=f"group-{number}",
                generation_id_or_member_epoch=-1,
                member_id="",
                group_instance_id=None,
                topics=[topic(name=TOPIC, partitions=[partition])],
            )
            frames.append((self._ports[0], _request(request, 7)))
            self._until_done(frames[-1], error_at)
        return Load(frames, error_at)

    def metadata(self) -> Load:
        """Return a load that asks for a thousand topics, over eight connections."""
        names = [f"described-{number}" for number in range(TOPICS)]
        for start in range(0, TOPICS, 100):
            self._create([(name, 1) for name in names[start : start + 100]])
        topic = messages.MetadataRequest.MetadataRequestTopic
        request = messages.MetadataRequest(
            topics=[topic(name=name) for name in names], allow_auto_topic_creation=False
        )
        return Load([(self._ports[0], _request(request, 8))] * 8, -1)

    def connect(self) -> Load:
        """Return a load that opens a new connection for each request, with eight at a time."""
        request = messages.ApiVersionsRequest()
        return Load([(self._ports[0], _request(request, 0))] * 8, 4, reopens=True)

    def heartbeat(self) -> Load:
        """Return a load of heartbeats (KIP-848) of the members of one group, a connection for each member."""
        members = {str(uuid.uuid4()): 0 for _ in range(MEMBERS)}
        with socket.create_connection(("127.0.0.1", self._ports[0])) as connection:
            calm = 0
            while calm < CALM_ROUNDS:
                before = dict(members)
                for member, epoch in before.items():
                    members[member] = _beat(connection, member, epoch)
                calm = calm + 1 if before == members else 0
                time.sleep(CALM_PAUSE_S)
        frames = [(self._ports[0], _heartbeat(member, epoch)) for member, epoch in members.items()]
        return Load(frames, _BEAT_ERROR_AT)

    def _create(self, topics: Sequence[tuple[str, int]]) -> None:
        admin = AdminClient({"bootstrap.servers": self._side.bootstrap})
        created = admin.create_topics(
            [
                NewTopic(name, num_partitions=count, replication_factor=self._nodes)
                for name, count in topics
            ],
            request_timeout=30,
        )
        for result in created.values():
            try:
                result.result(30)
            except KafkaException as error:  # an earlier load may have created the topic
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def _leaders(self, topic: str) -> dict[int, int]:
        metadata = AdminClient({"bootstrap.servers": self._side.bootstrap}).list_topics(topic)
        ports = {broker.id: broker.port for broker in metadata.brokers.values()}
        partitions = metadata.topics[topic].partitions
        return {index: ports[partition.leader] for index, partition in partitions.items()}

    def _until_done(self, request: tuple[int, bytes], error_at: int) -> None:
        """Repeat a request until its response has no error, because coordinators load when they are
        first used.
        """
        port, frame = request
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for _ in range(ATTEMPTS_MAX):
                response = _asked(connection, frame)
                (code,) = struct.unpack_from(">h", response, error_at)
                if not code:
                    return
                time.sleep(0.05)
        raise RuntimeError(f"{self._side.name}: error {code} in the response")


_BEAT_ERROR_AT: Final = 4 + 1 + 4  # correlation id, tagged fields of the header, throttle time


def _beat(connection: socket.socket, member: str, epoch: int) -> int:
    """Send a heartbeat and return the member's epoch."""
    response = _asked(connection, _heartbeat(member, epoch))
    (code,) = struct.unpack_from(">h", response, _BEAT_ERROR_AT)
    if code:
        time.sleep(0.05)  # the coordinator is loading
        return epoch
    at = _BEAT_ERROR_AT + 2
    for _ in ("error message", "member id"):  # lengths below 127, plus one; 0 is null
        at += max(response[at], 1)
    (now,) = struct.unpack_from(">i", response, at)
    return int(now)


def _heartbeat(member: str, epoch: int) -> bytes:
    is_joining = epoch == 0
    request = messages.ConsumerGroupHeartbeatRequest(
        group_id="crowd",
        member_id=member,
        member_epoch=epoch,
        instance_id=None,
        rack_id=None,
        # The first members never release the partitions that are assigned to later members. With a long timeout, the
        # coordinator does not remove them for that while the load runs.
        rebalance_timeout_ms=3_600_000 if is_joining else -1,
        subscribed_topic_names=[TOPIC] if is_joining else None,
        subscribed_topic_regex=None,
        server_assignor=None,
        topic_partitions=[] if is_joining else None,
    )
    return _request(request, 1)


def _asked(connection: socket.socket, frame: bytes) -> bytes:
    connection.sendall(frame)
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise RuntimeError("the broker closed a connection of the benchmark")
        received += piece
    return bytes(received)


def _request(
    message: Any, version: int
) -> bytes:  # Any: classes of messages that are made at run time
    return _frame(ApiKey(message.API_KEY), version, bytes(encode_message(message, version)))


def _frame(key: ApiKey, version: int, body: bytes) -> bytes:
    is_flexible = version >= SUPPORTED[key].flexible
    head = struct.pack(">hhih", key, version, 1, len(_CLIENT)) + _CLIENT + b"\0" * is_flexible
    return struct.pack(">i", len(head) + len(body)) + head + body


def _produce_error_at(topic: str) -> int:
    return 4 + 4 + len(_string(topic)) + 4 + 4


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
