"""Errors that are not of the disk (such as too many open files) take no data directory offline: the
call is undone, refused, and may be repeated.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek_broker.log.storage import ErrorClass, StorageFailed, StorageRefused, error_class
from tests.unit.log.material import PARTITION, TOPIC, memory_broker
from tests.unit.log.test_storage_faults import CONFIG, History, reopen
from tests.worlds.memory_storage import MemoryStorage

OUR_OWN = ["EMFILE", "ENFILE", "ENOMEM", "ENAMETOOLONG", "EINVAL", "ENOENT"]


def refusing(number: int, code: int, kind: str, refused: list[str]) -> Callable[..., None]:
    """Make operation `number` fail and, if `kind` is lasting, all later ones of its type.

    Syncs do not fail, because they fail only on a disk error. Each failed operation is added to
    `refused`.
    """
    state = {"left": number, "kind": ""}

    def fault(operation: str, path: Path) -> None:
        if operation == "sync":
            return
        state["left"] -= 1
        if state["left"] == 0:
            state["kind"] = operation
        if state["left"] == 0 or (kind == "lasting" and operation == state["kind"]):
            refused.append(operation)
            raise OSError(code, "injected", str(path))

    return fault


@pytest.mark.parametrize("kind", ["once", "lasting"])
@pytest.mark.parametrize("code", OUR_OWN)
def test_an_error_that_is_not_the_disks_is_taken_back_at_any_call_and_ends_nothing(
    code: str, kind: str
) -> None:
    number = 0
    operations: set[str] = set()
    while True:
        number += 1
        broker = memory_broker(CONFIG)
        broker.checkpoint()
        storage, health = broker.storage, broker.directory.health
        assert isinstance(storage, MemoryStorage)
        history, refused = History(), list[str]()
        storage.fault = refusing(number, getattr(errno, code), kind, refused)
        try:
            history.act(broker)
        except StorageFailed as failure:
            history.failure = failure
        storage.fault = None
        if not refused:
            break  # the history has fewer operations than that
        operations |= set(refused)
        assert (health.failure, health.full) == (None, None), (number, refused)
        assert isinstance(history.failure, StorageRefused | None), number
        if not broker.log.is_intact:
            reopen(broker)
        everything, kept = b"".join(history.appended), broker.read_all()
        assert kept in everything, number
        if history.failure is not None and len(history.appended) < 11:
            assert kept == everything, number
        after = broker.append(2)
        broker.sync(full=True)
        assert broker.log.durable_end_offset == broker.log.log_end_offset
        broker.kill_and_start()
        assert broker.report is not None
        assert not broker.report.power_loss, number
        assert broker.read_all() == kept + after, number
    assert number > 50
    assert {"open", "write", "create", "rename", "remove", "truncate"} <= operations


@pytest.mark.parametrize("code", OUR_OWN)
def test_a_read_that_finds_no_descriptor_fails_alone(code: str) -> None:
    broker = memory_broker(CONFIG)
    data = b"".join(broker.append(3, value_bytes=40) for _ in range(6))
    broker.stop_and_start()  # the tail is not in memory
    storage, health = broker.storage, broker.directory.health
    assert isinstance(storage, MemoryStorage)
    storage.is_hot = False

    def fault(operation: str, path: Path) -> None:
        if operation in ("open", "read"):
            raise OSError(getattr(errno, code), "injected", str(path))

    storage.fault = fault
    for _ in range(2):
        with pytest.raises(StorageRefused, match="injected"):
            broker.read_all()
        with pytest.raises(StorageRefused, match="injected"):
            broker.log.offset_for_timestamp(1001)
    storage.fault = None
    assert (health.failure, health.full) == (None, None)
    assert broker.read_all() == data
    assert broker.log.offset_for_timestamp(1001) is not None


def test_a_start_without_enough_descriptors_names_the_log_and_the_way_out() -> None:
    broker = memory_broker(CONFIG)
    data = broker.append(3)
    broker.sync(full=True)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)

    def fault(operation: str, path: Path) -> None:
        if operation == "open" and path.suffix == ".log":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    storage.kill_process()
    storage.fault = fault
    with pytest.raises(
        StorageRefused, match="Too many open files; raise the process's limit"
    ) as refused:
        broker.start()
    assert str(broker.path / f"{TOPIC}-{PARTITION}") in str(refused.value)
    assert "ulimit -n" in str(refused.value)
    storage.fault = None
    broker.kill_and_start()
    assert broker.read_all() == data, "the refused start changed nothing"


def test_every_class_of_error_is_what_the_table_says() -> None:
    assert error_class(OSError(errno.EIO, "")) is ErrorClass.DISK
    assert error_class(OSError(errno.EROFS, "")) is ErrorClass.DISK
    assert error_class(OSError("no number")) is ErrorClass.DISK
    assert error_class(OSError(errno.ENOSPC, "")) is ErrorClass.FULL
    assert error_class(OSError(errno.EFBIG, "")) is ErrorClass.FULL
    for code in OUR_OWN:
        assert error_class(OSError(getattr(errno, code), "")) is ErrorClass.PROCESS
