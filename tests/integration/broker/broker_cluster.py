"""The environment of these tests: broker processes around a MemoryController, and a raw gRPC
client.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from odradek_protocol.records.batch_header import iter_headers
from odradek_protocol.records.batch_reader import decode_batch
from odradek_protocol.records.builder import BatchBuilder
from odradek_protocol.rpc.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    broker_service_pb2,
    broker_service_pb2_grpc,
)
from odradek_runtime.tls import TlsFiles
from tests.integration.broker.memory_controller import MemoryController

READY_TIMEOUT_S = 60.0
_OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.use_local_subchannel_pool", 1)]


class BrokerProcess:
    """One process `python -m odradek_broker`; it may be started again after it ended."""

    def __init__(
        self,
        broker_id: int,
        *,
        directory: Path,
        cluster_id: str,
        controllers: str,
        settings: Any,
        module: str = "odradek_broker",
    ) -> None:
        self.broker_id = broker_id
        self.directory = directory
        self.log_path = directory.parent / f"broker-{broker_id}.log"
        self.ports: dict[str, int] = {}
        self.process: asyncio.subprocess.Process | None = None
        self._drain: asyncio.Task[bytes] | None = None
        self._module = module
        self._settings = {
            "node.id": broker_id,
            "cluster.id": cluster_id,
            "log.dirs": directory,
            "controller.rpc.endpoints": controllers,
            **settings,
        }

    async def start(self, *, wait: bool = True) -> None:
        """Start the process, and wait until it reports that it serves.

        Ports stay the same after restarts.
        """
        ports = {name: self.ports.get(name, 0) for name in ("GRPC", "REPLICATION")}
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        arguments = [f"{k}={v}" for k, v in {"listeners": listeners, **self._settings}.items()]
        with self.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                "--exit-with-parent",
                *(part for one in arguments for part in ("--set", one)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={k: v for k, v in os.environ.items() if not k.startswith("ODRADEK_")},
            )
        if wait:
            await self.ready()

    async def ready(self) -> None:
        """Wait until the process reports that it serves."""
        assert self.process is not None
        assert self.process.stdout is not None
        async with asyncio.timeout(READY_TIMEOUT_S):
            line = await self.process.stdout.readline()
        if not line:
            raise AssertionError(f"broker {self.broker_id} ended:\n{self.log_tail()}")
        self.ports = json.loads(line)["ports"]

    def log_tail(self) -> str:
        """Return the last lines of the process's log."""
        return self.log_path.read_text(errors="replace")[-4000:]

    async def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def terminate(self) -> int:
        """Send SIGTERM, and return the exit status."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(READY_TIMEOUT_S):
            return await self.process.wait()

    @property
    def endpoint(self) -> str:
        """Return host:port of the broker's gRPC listener."""
        return f"127.0.0.1:{self.ports['GRPC']}"


class BrokerCluster:
    """A controller in this process, and brokers in other processes."""

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 1,
        settings: dict[str, Any] | None = None,
        tls_of: Callable[[str], TlsFiles] | None = None,
        module: str = "odradek_broker",
    ) -> None:
        """If `tls_of` is given, it issues the certificate of each name, and all connections use
        TLS.

        `module` is the program that runs as a broker.
        """
        self.cluster_id = "test-cluster"
        self.controller = MemoryController(cluster_id=self.cluster_id)
        self.brokers: dict[int, BrokerProcess] = {}
        self._directory = directory
        self._count = brokers
        self._settings = settings or {}
        self._tls_of = tls_of
        self._module = module
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> BrokerCluster:
        tls_of = self._tls_of
        await self.controller.start(
            None
            if tls_of is None
            else tls_of("controller-1").server_credentials(require_client=True)
        )
        for broker_id in range(1, self._count + 1):
            self.brokers[broker_id] = BrokerProcess(
                broker_id,
                directory=self._directory / f"broker-{broker_id}",
                cluster_id=self.cluster_id,
                controllers=self.controller.endpoint,
                settings={**self._settings, **self._tls_settings(f"broker-{broker_id}")},
                module=self._module,
            )
        try:
            await asyncio.gather(*(broker.start() for broker in self.brokers.values()))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels.values():
            await channel.close()
        await asyncio.gather(
            *(broker.kill() for broker in self.brokers.values() if broker.process is not None)
        )
        await self.controller.stop()

    def _tls_settings(self, name: str) -> dict[str, Any]:
        if self._tls_of is None:
            return {}
        files = self._tls_of(name)
        return {
            "ssl.certificate.location": files.certificate,
            "ssl.key.location": files.key,
            "ssl.ca.location": files.ca,
        }

    def channel(self, broker_id: int) -> grpc.aio.Channel:
        """Return a channel to a broker's gRPC listener."""
        endpoint = self.brokers[broker_id].endpoint
        if endpoint not in self._channels:
            if self._tls_of is None:
                channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
            else:
                channel = self.channel_as("client", broker_id)
            self._channels[endpoint] = channel
        return self._channels[endpoint]

    def channel_as(self, name: str, broker_id: int) -> grpc.aio.Channel:
        """Return a channel that presents the certificate of `name`; the caller closes it."""
        assert self._tls_of is not None
        endpoint = self.brokers[broker_id].endpoint
        credentials = self._tls_of(name).channel_credentials()
        return grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)

    def broker_stub(self, broker_id: int) -> broker_service_pb2_grpc.BrokerServiceAsyncStub:
        """Return a stub of BrokerService on a broker."""
        return broker_service_pb2_grpc.BrokerServiceStub(self.channel(broker_id))

    async def create_topic(
        self, name: str, *, partitions: int = 1, replicas: int = 1, via: int = 1, **configs: str
    ) -> None:
        """Create a topic through a broker, and have each other broker wait until it knows the topic."""
        stub = admin_service_pb2_grpc.AdminServiceStub(self.channel(via))
        answer = await stub.CreateTopics(
            admin_service_pb2.CreateTopicsRequest(
                topics=[
                    admin_service_pb2.NewTopic(
                        name=name,
                        partition_count=partitions,
                        replication_factor=replicas,
                        configs={k.replace("_", "."): v for k, v in configs.items()},
                    )
                ]
            )
        )
        assert answer.topics[0].error_code == 0, answer
        wanted = broker_service_pb2.MetadataRequest(
            topics=[name], min_metadata_offset=answer.metadata_offset
        )
        for broker_id in self.brokers:
            metadata = await self.broker_stub(broker_id).Metadata(wanted)
            assert metadata.metadata_offset >= answer.metadata_offset > 0
            assert len(metadata.topics[0].partitions) == partitions

    async def disable_topic_creation(self) -> None:
        """Configure the brokers not to create topics automatically."""
        operation = admin_service_pb2.AlterConfigsOperation(
            name="auto.create.topics.enable", value="false"
        )
        response = await admin_service_pb2_grpc.AdminServiceStub(self.channel(1)).AlterConfigs(
            admin_service_pb2.AlterConfigsRequest(
                resources=[
                    admin_service_pb2.AlterConfigsResource(
                        type=admin_service_pb2.CONFIG_RESOURCE_TYPE_BROKER, operations=[operation]
                    )
                ]
            )
        )
        assert not response.resources[0].error_code, response

    def partition(self, topic: str, index: int = 0) -> Any:
        """Return the controller's state of a partition."""
        state = self.controller.core.committed.topic(topic)
        assert state is not None
        return state.partitions[index]

    async def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait for a condition on the controller's metadata."""
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110  # a poll of a foreign state
                await asyncio.sleep(0.01)

    async def produce(
        self,
        topic: str,
        records: bytes,
        *,
        partition: int = 0,
        acks: int = -1,
        timeout_ms: int = 10_000,
        via: int | None = None,
    ) -> broker_service_pb2.ProducePartitionResult:
        """Send one produce request to the leader, over a new stream."""
        broker_id = self.partition(topic, partition).leader if via is None else via
        call = self.broker_stub(broker_id).Produce()
        await call.write(produce_request(topic, records, partition, acks=acks, ms=timeout_ms))
        answer = await call.read()
        await call.done_writing()
        result: broker_service_pb2.ProducePartitionResult = answer.partitions[0]
        return result

    async def read(
        self, topic: str, *, partition: int = 0, start: int = 0, end: int, via: int | None = None
    ) -> bytes:
        """Return all batches of [start, end) from the leader."""
        broker_id = self.partition(topic, partition).leader if via is None else via
        call = self.broker_stub(broker_id).Fetch()
        await call.write(
            broker_service_pb2.FetchRequest(
                settings=broker_service_pb2.FetchSettings(),
                credit_bytes=1 << 40,
                add=[
                    broker_service_pb2.FetchPartition(
                        topic=topic,
                        partition=partition,
                        offset=start,
                        end_offset=end,
                        current_leader_epoch=-1,
                    )
                ],
            )
        )
        found: list[bytes] = []
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                answer = await call.read()
                assert answer is not grpc.aio.EOF
                for one in answer.partitions:
                    assert one.error_code == 0, one
                    found.append(one.records)
                    if one.end_reached:
                        call.cancel()
                        return b"".join(found)


def batch(values: list[bytes], *, key: bytes | None = None) -> bytes:
    """Return one batch with these values."""
    builder = BatchBuilder()
    for value in values:
        builder.append(key, value, None, 1_700_000_000_000)
    return builder.build()


def produce_request(
    topic: str, records: bytes, partition: int = 0, *, acks: int = -1, ms: int = 10_000, n: int = 1
) -> broker_service_pb2.ProduceRequest:
    """Return a produce request for one partition."""
    return broker_service_pb2.ProduceRequest(
        request_id=n,
        acks=acks,
        timeout_ms=ms,
        partitions=[
            broker_service_pb2.ProducePartition(topic=topic, partition=partition, records=records)
        ],
    )


def record_count(batches: bytes) -> int:
    """Return how many records the batches hold."""
    return sum(header.record_count for _, header in iter_headers(batches))


def record_values(batches: bytes) -> list[int]:
    """Return the values of all records, which are decimal numbers."""
    return [
        int(record.value)
        for position, _ in iter_headers(batches)
        for record in decode_batch(batches, position)
        if record.value is not None
    ]
