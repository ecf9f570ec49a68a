"""A read that returns a slice of the file has the same batches as a read that returns the bytes."""

from __future__ import annotations

import socket
from pathlib import Path
from random import Random

import pytest

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.storage import DiskStorage, FileSlice
from odradek_protocol.identity import Offset
from tests.unit.log.material import PATH, Broker, batch
from tests.worlds.memory_storage import MemoryStorage

CONFIG = LogConfig(segment_bytes=400_000, index_interval_bytes=4096)


def filled(broker: Broker, batches: int, random: Random) -> None:
    log = broker.log
    for _ in range(batches):
        data = batch(
            log.log_end_offset, count=random.randrange(1, 5), value_bytes=random.randrange(9000)
        )
        log.append(data, now_ms=0, retain=False)
    log.set_high_watermark(log.log_end_offset)


def test_a_slice_holds_what_a_read_brings_from_any_offset_to_any_bound() -> None:
    storage, random = MemoryStorage(), Random(7)
    broker = Broker(storage, PATH, CONFIG)
    filled(broker, 150, random)
    log, sliced = broker.log, 0
    for _ in range(300):
        start = Offset(random.randrange(log.log_end_offset))
        end = Offset(random.randrange(start, log.log_end_offset) + 1)
        bytes_max = random.randrange(200_000)
        plain = log.plan_read(start, bytes_max=bytes_max, end_offset=end).run()
        lazy = log.plan_read(start, bytes_max=bytes_max, end_offset=end).run(as_file_slice=True)
        assert lazy.size_bytes == plain.size_bytes
        assert (lazy.start_offset, lazy.end_offset) == (plain.start_offset, plain.end_offset)
        data = b"".join(lazy.slices) if lazy.file_slice is None else lazy.file_slice.read()
        assert data == b"".join(plain.slices)
        sliced += lazy.file_slice is not None
    assert sliced > 50


def test_a_slice_gives_its_descriptor_back() -> None:
    storage = MemoryStorage()
    broker = Broker(storage, PATH, CONFIG)
    filled(broker, 40, Random(1))
    before = storage.handles
    end = broker.log.log_end_offset
    result = broker.log.plan_read(Offset(0), bytes_max=100_000, end_offset=end).run(
        as_file_slice=True
    )
    assert result.file_slice is not None
    assert storage.handles == before + 1
    del result
    assert storage.handles == before


def test_a_slice_is_sent_as_far_as_the_socket_takes_it(tmp_path: Path) -> None:
    content = Random(3).randbytes(8 << 20)
    (tmp_path / "file").write_bytes(content)
    file = DiskStorage().open(tmp_path / "file")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        piece = FileSlice(file, 1000, len(content) - 2000)
        file.close()  # the slice has its own
        sent = piece.send(ours.fileno())
        assert 0 < sent < len(piece)
        assert piece.send(ours.fileno()) == 0
        ours.close()
        came = bytearray()
        while part := theirs.recv(1 << 20):
            came += part
    assert came + piece.read(sent) == content[1000:-1000]


def test_a_file_that_became_shorter_is_an_error_not_a_short_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(5000))
    file = DiskStorage().open(tmp_path / "file")
    piece = FileSlice(file, 1000, 4000)
    file.truncate(3000)
    file.close()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(OSError, match="ends inside a slice"):
            piece.send(ours.fileno())
        with pytest.raises(OSError, match="ends inside a slice"):
            piece.read()
