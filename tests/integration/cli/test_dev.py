"""`odradek dev` with its processes killed: the rest serves, and what died can be started again."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

CLI = [sys.executable, "-m", "odradek.cli.main"]


@contextmanager
def dev(*options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    process = subprocess.Popen(
        [*CLI, "dev", "--json", "--gateways", "0", *options],
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
    line = next(line for line in errors if f"{name} ended with status -9" in line)
    found = re.search(r"to start it again: (.*)", line)
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


def test_it_ends_when_nothing_of_the_cluster_is_left() -> None:
    with dev("--brokers", "1", "--controllers", "1") as (process, told):
        for pid in told["pids"].values():
            os.kill(pid, signal.SIGKILL)
        assert process.wait(30) == 1
        assert process.stderr is not None
        assert process.stderr.read().endswith("odradek: no process of the cluster is left\n")
