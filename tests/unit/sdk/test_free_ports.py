"""The ports of an embedded cluster are free, distinct, and never those of another program's
cluster.
"""

from __future__ import annotations

import fcntl
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from odradek import loopback_ports
from odradek.embedded import ChildProcess, ClusterPlan, EmbeddedCluster, free_ports

_ASK = "from odradek.embedded import free_ports; print(*free_ports(70)); input()"


def test_ports_are_distinct_also_beyond_one_block() -> None:
    assert len(set(free_ports(250))) == 250


def test_a_port_that_is_taken_is_left_out() -> None:
    [port] = free_ports(1)
    everything_else = len(loopback_ports._ports) - 1
    with socket.create_server(("127.0.0.1", port)):
        assert port not in free_ports(everything_else)


def test_a_port_given_is_not_given_again_soon() -> None:
    first = free_ports(30)
    assert not set(first) & set(free_ports(30))


def test_programs_that_ask_at_the_same_time_get_different_ports() -> None:
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", _ASK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    lines = [program.stdout.readline() for program in programs if program.stdout]
    for program in programs:
        program.communicate(b"\n")
    given = [port for line in lines for port in line.split()]
    assert len(given) == len(set(given)) == 4 * 70


def test_a_wish_that_is_taken_is_refused_by_name() -> None:
    [port] = free_ports(1)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(OSError, match=f"port {port} on 127.0.0.1 is in use"),
    ):
        free_ports(2, base_port=port)


def test_a_cluster_whose_first_start_was_killed_while_it_wrote_its_id_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "cluster.id").touch()
    plan = ClusterPlan(brokers=1, controllers=1, data_dir=tmp_path)
    cluster_id = EmbeddedCluster(plan).cluster_id
    assert cluster_id
    assert EmbeddedCluster(plan).cluster_id == cluster_id


def test_an_empty_log_on_a_full_disk_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = ChildProcess(
        name="silent", module="this", arguments=[], log_path=tmp_path / "silent.log"
    )
    child._open_log().close()
    assert child.log_tail() == ""
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr("odradek.embedded.shutil.disk_usage", lambda _: usage)
    assert "is full" in child.log_tail()


def test_a_cluster_waits_for_the_processes_of_one_that_was_killed(tmp_path: Path) -> None:
    """They still hold their directories for a moment, and a start was refused."""
    cluster = EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, data_dir=tmp_path))
    assert cluster.locked_directories() == []
    held = []
    for directory, name in (("controller-1", "lock"), ("broker-1", ".lock")):
        (tmp_path / directory).mkdir()
        held.append((tmp_path / directory / name).open("wb"))
        fcntl.flock(held[-1], fcntl.LOCK_EX)
    assert cluster.locked_directories() == [tmp_path / "controller-1", tmp_path / "broker-1"]
    ending = threading.Timer(0.3, lambda: [file.close() for file in held])
    ending.start()
    cluster.wait_unlocked()
    assert cluster.locked_directories() == []
    ending.join()
