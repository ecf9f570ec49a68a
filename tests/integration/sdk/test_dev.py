"""`odradek dev` while its processes are killed: the others keep serving, and a killed one can be started again."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from odradek.cli import processes
from odradek.embedded import (
    ClusterPlan,
    EmbeddedCluster,
    _pids_of,
    _usual_ports,
)
from odradek.loopback_ports import free_ports, hold_if_all_free
from tests.tools import need

CLI = [sys.executable, "-m", "odradek.cli.main"]


@contextmanager
def dev(*options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    process = subprocess.Popen(
        [*CLI, "dev", "--json", "--gateways", "0", "--base-port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(30)
        process.stdout.close()
        process.stderr.close()


def run(told: dict[str, Any], *words: str, stdin: str = "") -> str:
    return subprocess.run(
        [*CLI, *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"ODRADEK_BOOTSTRAP": told["grpc"]},
        timeout=60,
    ).stdout


def how_to_start_again(errors: IO[str] | None, name: str) -> list[str]:
    assert errors is not None
    line = next(line for line in errors if f"{name} was killed by SIGKILL" in line)
    found = re.search(r"To start it again: (.*)", line)
    assert found is not None, line
    return shlex.split(found[1])


def test_the_cluster_goes_on_without_a_killed_broker_which_may_come_back() -> None:
    with dev("--brokers", "3", "--controllers", "1") as (process, told):
        run(told, "topic", "create", "flights", "--partitions", "3", "--replicas", "3")
        run(told, "produce", "flights", stdin="before\n")
        os.kill(told["pids"]["broker-2"], signal.SIGKILL)
        command = how_to_start_again(process.stderr, "broker-2")
        run(told, "produce", "flights", "--acks", "all", stdin="".join(f"{i}\n" for i in range(30)))
        read = run(told, "consume", "flights", "--from-beginning", "--exit-at-end").split()
        assert sorted(read) == sorted(["before", *map(str, range(30))])
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as again:
            assert again.stdout is not None
            assert json.loads(again.stdout.readline())["event"] == "ready"
            again.terminate()
            assert again.wait(30) == 0
        assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 0


def test_a_broker_that_was_started_again_by_hand_ends_with_the_cluster() -> None:
    with dev("--brokers", "1", "--controllers", "1") as (process, told):
        os.kill(told["pids"]["broker-1"], signal.SIGKILL)
        command = how_to_start_again(process.stderr, "broker-1")
        with subprocess.Popen(
            [*command, "--set", "log.level=DEBUG"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as again:
            assert again.stdout is not None
            assert json.loads(again.stdout.readline())["event"] == "ready"
            assert process.stderr is not None
            assert process.stderr.readline() == f"odradek: broker-1 runs again (pid {again.pid})\n"
            os.kill(told["pids"]["controller-1"], signal.SIGKILL)
            how_to_start_again(process.stderr, "controller-1")
            assert process.poll() is None, "a process of the cluster still runs"
            process.terminate()
            assert process.wait(30) == 0
            assert again.wait(30) == 0
        said = f"odradek: broker-1 (pid {again.pid}), which was started again by hand, was stopped"
        assert process.stderr.read() == f"{said}\n"


@pytest.mark.parametrize("proc", ["/proc", "/nonexistent"])
def test_processes_are_found_by_their_command_lines(proc: str) -> None:
    if proc == "/nonexistent":
        need("ps")
    program = "print(flush=True); input()"
    command = [sys.executable, "-c", program, f"marker-{os.getpid()}"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "more"], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()  # A process has no command line for a moment after it was started.
        assert _pids_of(command, Path(proc)) == [process.pid]
        assert _pids_of([*command, "other"], Path(proc)) == []
        process.communicate(b"\n")
    assert _pids_of(command, Path(proc)) == []


def test_it_says_at_once_what_it_starts_and_then_where_everything_is() -> None:
    with subprocess.Popen(
        [*CLI, "dev", "--brokers", "2", "--controllers", "1", "--base-port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("Starting 1 controller, 2 brokers and 1 gateway; data in /")
        assert "deleted at the end; --data-dir DIR keeps it" in first
        lines = iter(process.stdout.readline, "")
        shown = "".join(itertools.takewhile(lambda line: "Kafka clients" not in line, lines))
        for listener, count in (
            ("replication (gRPC)", 2),
            ("controllers (gRPC)", 1),
            ("controllers (Raft)", 1),
        ):
            ports = re.search(rf"^  {re.escape(listener)}: ([\d, ]+)$", shown, re.MULTILINE)
            assert ports is not None, shown
            assert len(ports[1].split(", ")) == count
        pids = dict(re.findall(r"^([a-z]+-\d)\s+(\d+)", shown, re.MULTILINE))
        assert set(pids) == {"controller-1", "broker-1", "broker-2", "gateway-1"}
        line = next(lines)
        if line.startswith("The REST gateway is still starting"):  # the brokers were ready first
            line = next(lines)
        serving = re.fullmatch(r"gateway-1 serves (http://127\.0\.0\.1:\d+)\n", line)
        assert serving is not None
        with urllib.request.urlopen(f"{serving[1]}/livez") as response:
            assert response.status == 200
        bootstrap = re.search(r"export ODRADEK_BOOTSTRAP=(\S+)", shown)
        assert bootstrap is not None
        run({"grpc": bootstrap[1]}, "topic", "create", "kept-twice")
        told = run({"grpc": bootstrap[1]}, "topic", "describe", "kept-twice", "-o", "json")
        assert len(json.loads(told)["partitions"][0]["replicas"]) == 2
        process.terminate()
        assert process.wait(30) == 0


def test_the_usual_ports_are_those_of_the_quick_start() -> None:
    page = (Path(__file__).parents[3] / "docs/quick-start.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\w+)", page, re.MULTILINE)
    raft, controller, controller_metrics, kafka, grpc, replication, broker_metrics, http = (
        _usual_ports(ClusterPlan(brokers=1, controllers=1, gateways=1))
    )
    assert [int(port) for port, _ in rows] == [kafka, grpc, replication, controller, raft, http]
    assert f"metrics at {broker_metrics} (broker) and {controller_metrics} (controller)" in page
    many = _usual_ports(ClusterPlan(brokers=32, controllers=7, gateways=8))
    assert len(set(many)) == len(many)


def test_the_usual_ports_are_held_by_one_program_at_a_time() -> None:
    (holder, first, second) = free_ports(3)
    assert hold_if_all_free([first, second], holder)
    assert not hold_if_all_free([first, second], holder)
    (other,) = free_ports(1)
    with socket.create_server(("127.0.0.1", first)):
        assert not hold_if_all_free([first, second], other)


def test_it_ends_when_nothing_of_the_cluster_is_left() -> None:
    with dev("--brokers", "1", "--controllers", "1") as (process, told):
        for pid in told["pids"].values():
            os.kill(pid, signal.SIGKILL)
        assert process.wait(30) == 1
        assert process.stderr is not None
        assert process.stderr.read().endswith("odradek: no process of the cluster is running\n")


def test_processes_that_are_still_starting_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "PATIENCE_S", 0.01)
    cluster = EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, data_dir=tmp_path))
    output = ""
    with processes.explained(cluster):
        while "waiting for controller-1, broker-1\n" not in output:
            output += capsys.readouterr().out
