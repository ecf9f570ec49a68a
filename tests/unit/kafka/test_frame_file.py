"""Large unfinished frames beyond an owner's share of memory are kept in a file, and are still
received completely.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import random
import struct
import tempfile
import threading
from pathlib import Path

import pytest

from odradek_broker.kafka import listener as kafka_listener
from odradek_broker.kafka.frame_file import PART_BYTES_MIN, FrameFile
from odradek_broker.kafka.frames import FrameAssembler
from odradek_protocol.kafka.api_keys import ApiKey
from tests.unit.kafka.test_connection import PRODUCE_3
from tests.unit.kafka.wire_client import WireClient, eventually, listening

MIB = 1 << 20
POOL_BYTES = 8 * MIB  # an owner's share is an eighth


def produce_of(records: bytes) -> bytes:
    body = PRODUCE_3[:-65] + struct.pack(">i", len(records)) + records
    head = struct.pack(">hhih", ApiKey.PRODUCE, 3, 1, 2) + b"me"
    return struct.pack(">i", len(head) + len(body)) + head + body


def bytes_in_memory() -> int:
    frames = (item for item in gc.get_objects() if isinstance(item, FrameAssembler))
    return sum(assembler.memory_bytes for assembler in frames)


def open_files() -> list[str]:
    paths = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            continue
    return paths


async def send(client: WireClient, data: bytes) -> None:
    client.writer.write(data)
    await client.writer.drain()


async def test_an_unfinished_frame_costs_a_share_of_memory_and_arrives_in_the_end(
    tmp_path: Path,
) -> None:
    records = random.Random(1).randbytes(30 * MIB)
    async with listening(queued_request_bytes_max=POOL_BYTES, log_dir=tmp_path) as server:
        client = await server.connect()
        arriving = server.listeners.arriving
        frame = produce_of(records)
        await send(client, frame[: 20 * MIB])
        await eventually(lambda: arriving.total_bytes >= 19 * MIB)
        assert bytes_in_memory() <= POOL_BYTES // 8 + 2 * PART_BYTES_MIN
        assert any(str(tmp_path) in path for path in open_files())
        await send(client, frame[20 * MIB :])
        assert (await client.receive())[0] == 1
        assert server.partitions.appended[0][2] == records
        assert arriving.total_bytes == 0
        assert not any(str(tmp_path) in path for path in open_files())
        assert not os.listdir(tmp_path)


async def test_large_frames_of_one_owner_arrive_one_after_the_other(tmp_path: Path) -> None:
    records = [random.Random(seed).randbytes(18 * MIB) for seed in range(3)]
    async with listening(queued_request_bytes_max=POOL_BYTES, log_dir=tmp_path) as server:
        clients = [await server.connect() for _ in records]
        for client, batch in zip(clients, records, strict=True):
            client.writer.write(produce_of(batch))
        for client in clients:
            assert (await client.receive())[0] == 1
        assert sorted(appended[2] for appended in server.partitions.appended) == sorted(records)
        assert server.listeners.arriving.total_bytes == 0


async def test_a_frame_whose_client_leaves_leaves_no_file(tmp_path: Path) -> None:
    async with listening(queued_request_bytes_max=POOL_BYTES, log_dir=tmp_path) as server:
        client = await server.connect()
        arriving = server.listeners.arriving
        await send(client, produce_of(bytes(30 * MIB))[: 20 * MIB])
        await eventually(lambda: any(str(tmp_path) in path for path in open_files()))
        await client.close()
        await eventually(lambda: arriving.total_bytes == 0)
        await eventually(lambda: not any(str(tmp_path) in path for path in open_files()))


@pytest.mark.parametrize("is_finished", [True, False])
async def test_the_event_loop_does_not_wait_until_a_file_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    closed_in: list[threading.Thread] = []

    class WatchedFile(io.FileIO):
        def close(self) -> None:
            closed_in.append(threading.current_thread())
            super().close()

    def unnamed_file(buffering: int, dir: Path) -> WatchedFile:
        descriptor, name = tempfile.mkstemp(dir=dir)
        os.unlink(name)
        return WatchedFile(descriptor, "r+b")

    monkeypatch.setattr(tempfile, "TemporaryFile", unnamed_file)
    async with listening(queued_request_bytes_max=POOL_BYTES, log_dir=tmp_path) as server:
        client = await server.connect()
        frame = produce_of(bytes(30 * MIB))
        await send(client, frame[: 20 * MIB])
        await eventually(lambda: any(str(tmp_path) in path for path in open_files()))
        if is_finished:
            await send(client, frame[20 * MIB :])
            await client.receive()
        else:
            await client.close()
        await eventually(lambda: bool(closed_in))
        assert threading.main_thread() not in closed_in


async def test_a_file_that_cannot_be_written_ends_its_connection_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    missing = tmp_path / "missing"
    async with listening(queued_request_bytes_max=POOL_BYTES, log_dir=missing) as server:
        other = await server.connect()
        client = await server.connect()
        client.writer.write(produce_of(bytes(30 * MIB)))
        assert await client.is_closed()
        fields = [getattr(record, "odradek_fields", {}) for record in caplog.records]
        assert any(
            f"cannot be stored in a file in {missing}" in str(field.get("reason"))
            for field in fields
        )
        other.send(ApiKey.API_VERSIONS, 3)
        await other.receive()
        assert server.listeners.arriving.total_bytes == 0


async def test_frames_before_a_login_share_a_pool_by_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_listener, "EARLY_BYTES_PER_IP_MAX", 16 * 1024)
    async with listening(
        security_protocols=(("KAFKA", "SASL_PLAINTEXT"),), sasl_mechanisms=("SCRAM-SHA-256",)
    ) as server:
        strangers = [await server.connect() for _ in range(8)]
        early = server.listeners.early
        for stranger in strangers[:4]:
            await send(stranger, struct.pack(">i", 4096) + bytes(4000))
        await eventually(lambda: early.total == 4 * 4000)
        await send(strangers[4], struct.pack(">i", 4096) + bytes(4000))
        assert await strangers[4].is_closed()
        await strangers[0].close()
        await eventually(lambda: early.total == 3 * 4000)
        strangers[5].send(ApiKey.API_VERSIONS, 3)
        await strangers[5].receive()
    assert early.total == 0


class TestPlantedBugs:
    """Each mechanism above is switched off, and the named test must fail."""

    async def test_frames_beyond_the_share_stay_in_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def never_moved(self: FrameFile, wants: bool) -> bool:
            return wants and self._owner.arriving.may_read(self._connection)

        monkeypatch.setattr(FrameFile, "may_read", never_moved)
        with pytest.raises(AssertionError):
            await test_an_unfinished_frame_costs_a_share_of_memory_and_arrives_in_the_end(tmp_path)
