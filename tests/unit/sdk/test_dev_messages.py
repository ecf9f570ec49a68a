"""`odradek dev` reports processes that the user starts again by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek.cli import processes

COMMAND = ["python", "-m", "odradek_broker", "--set", "node.id=2"]
STARTS = "To start it again: python -m odradek_broker --set node.id=2\n"


class Child:
    """The part of a child process that `odradek dev` watches."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.command = COMMAND
        self.log_path = Path("/log")
        self.is_running = True
        self.pids: list[int] = []

    def describe_exit(self) -> str:
        return "was killed by SIGKILL"

    def user_pids(self) -> list[int]:
        return self.pids


class Steps:
    """A stop event for `_watch`. `wait` runs a step of the scenario in every SEARCH_TURNS-th call. When no step is
    left, it returns True.
    """

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = list(steps)
        self._turns = 0

    def wait(self, timeout_s: float) -> bool:
        self._turns += 1
        if self._turns % processes.SEARCH_TURNS == 1:
            if not self._steps:
                return True
            self._steps.pop(0)()
        return False


def watch(*children: Child, stop: Steps) -> bool:
    class Cluster:
        def children(self) -> list[Child]:
            return list(children)

    cluster: Any = Cluster()
    event: Any = stop
    return processes._watch(cluster, event, announces_gateways=False)


def test_each_start_by_hand_and_each_end_is_reported_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    killed, other = Child("broker-2"), Child("broker-1")
    steps = Steps(
        lambda: setattr(killed, "is_running", False),
        lambda: setattr(killed, "pids", [71]),
        lambda: None,
        lambda: setattr(killed, "pids", []),
        lambda: None,
        lambda: setattr(killed, "pids", [72]),
        lambda: setattr(killed, "pids", [73]),  # It was killed and started between two searches.
    )
    assert watch(killed, other, stop=steps)
    ended = "which was started again by hand, has ended; the others keep running."
    assert capsys.readouterr().err == (
        "odradek: broker-2 was killed by SIGKILL; the others keep running."
        f" Its log: /log. {STARTS}"
        "odradek: broker-2 runs again (pid 71)\n"
        f"odradek: broker-2 (pid 71), {ended} {STARTS}"
        "odradek: broker-2 runs again (pid 72)\n"
        f"odradek: broker-2 (pid 72), {ended} {STARTS}"
        "odradek: broker-2 runs again (pid 73)\n"
    )


def test_the_command_ends_when_also_the_processes_of_the_user_have_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    only = Child("broker-2")

    def start_by_hand() -> None:
        only.is_running, only.pids = False, [71]

    assert not watch(only, stop=Steps(start_by_hand, lambda: setattr(only, "pids", [])))
    assert capsys.readouterr().err.endswith("odradek: no process of the cluster is running\n")
