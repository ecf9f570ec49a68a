"""Data directories of several brokers in one directory, as `odradek broker --processes` lays them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek_broker.log.log_directory import DirectoryRefused, LogDirectory
from odradek_protocol.identity import BrokerId
from tests.unit.log.test_log_directory import CLUSTER, formatted, opened


def test_a_directory_of_data_directories_is_not_begun_as_an_empty_one(tmp_path: Path) -> None:
    """`odradek broker --processes 2` kept the data of each process in one of them."""
    for node in (3, 4):
        inner = tmp_path / f"broker-{node}"
        LogDirectory.format(inner, cluster_id=CLUSTER, node_id=BrokerId(node))
    (tmp_path / "lost+found").mkdir()
    with pytest.raises(
        DirectoryRefused, match=rf"\(broker-3, broker-4\).*set log.dirs={tmp_path}/broker-4"
    ):
        LogDirectory.format(tmp_path, cluster_id=CLUSTER, node_id=BrokerId(4))
    assert not (tmp_path / "meta.properties").exists()


def test_the_data_directory_of_another_broker_is_no_partition(tmp_path: Path) -> None:
    path = formatted(tmp_path)
    LogDirectory.format(path / "broker-4", cluster_id=CLUSTER, node_id=BrokerId(4))
    directory = opened(path)
    report = directory.load()
    directory.close(broker_epoch=None)
    assert not report.stray
    assert (path / "broker-4" / "meta.properties").exists()
