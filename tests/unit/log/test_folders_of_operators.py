"""Files and folders that an operator puts into a data directory are neither deleted nor treated as partitions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from odradek_broker.log.directory.restart_markers import RestartClass
from odradek_broker.log.storage import StorageFailed
from odradek_protocol.identity import BrokerEpoch
from tests.unit.log.material import PARTITION, SMALL, TOPIC, TOPIC_ID, batch
from tests.unit.log.test_log_directory import formatted, opened


def test_a_copy_of_a_partition_is_not_taken_for_the_partition(tmp_path: Path) -> None:
    """Only an operator knows which of the two is the older one."""
    path = formatted(tmp_path)
    directory = opened(path)
    directory.load(threads_max=1)
    log = directory.create(TOPIC, TOPIC_ID, PARTITION, SMALL)
    log.append(batch(0), now_ms=0)
    directory.close(broker_epoch=BrokerEpoch(1))
    shutil.copytree(path / f"{TOPIC}-0", path / "saved-0")
    directory = opened(path)
    with pytest.raises(StorageFailed, match=f"{TOPIC}-0 and saved-0 .* move one of them"):
        directory.load(threads_max=1)
    directory.close(broker_epoch=None)
    shutil.rmtree(path / "saved-0")
    directory = opened(path)
    assert directory.load(threads_max=1).partitions == 1
    assert directory.restart_class is RestartClass.PROCESS, "the disk has not failed"
    directory.close(broker_epoch=None)


def test_a_name_with_digits_of_another_kind_is_no_partitions(tmp_path: Path) -> None:
    path = formatted(tmp_path)
    (path / "area-m²").mkdir()
    (path / "area-²").mkdir()
    directory = opened(path)
    assert directory.load(threads_max=1).partitions == 0
    assert not directory.take_removals()
    directory.close(broker_epoch=None)


def test_a_folder_that_an_operator_put_there_is_not_taken_for_an_empty_partition(
    tmp_path: Path,
) -> None:
    """Its name is like that of a partition, and a partition without data is deleted."""
    path = formatted(tmp_path)
    kept = path / "backup-20260101" / "orders-0" / "00000000000000000000.log"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"precious")
    note = path / "backup-2" / "orders-0.tar.gz"
    note.parent.mkdir()
    note.write_bytes(b"precious")
    (path / "begun-3").mkdir()
    (path / "begun-3" / "partition.metadata").write_bytes(b"vers")
    (path / "begun-3" / "00000000000000000000.log").touch()
    directory = opened(path)
    directory.load(threads_max=1)
    removals = directory.take_removals()
    assert [name.name.split(".")[0] for name in removals] == ["begun-3"]
    found = [
        file for file in path.rglob("*") if file.is_file() and file.read_bytes() == b"precious"
    ]
    assert len(found) == 2
    directory.close(broker_epoch=None)
