"""Processes that run others: how long a supervisor waits before it restarts a broker, what it survives, and what ends a
wait.
"""

from __future__ import annotations

import errno
import io
import sys
import threading

import pytest

from odradek.embedded import ChildProcess, ChildProcessFailed
from odradek.supervisor import BACKOFF_S_MAX, CALM_S, HostSupervisor, SupervisedBroker


def broker() -> SupervisedBroker:
    return SupervisedBroker({"id": 1, "metrics_host": "", "settings": {"node.id": "1"}}, ())


def test_pauses_double_up_to_a_bound() -> None:
    dying = broker()
    pauses = [dying.plan_restart(0.0) for _ in range(200)]
    assert pauses[:7] == [0.5, 1, 2, 4, 8, 16, BACKOFF_S_MAX]
    assert set(pauses[7:]) == {BACKOFF_S_MAX}
    assert dying.start_at_s == BACKOFF_S_MAX


def test_a_minute_of_running_makes_the_next_pause_short_again() -> None:
    dying = broker()
    for _ in range(10):
        dying.plan_restart(0.0)
    assert dying.plan_restart(CALM_S) == 0.5


def test_the_derived_settings_come_after_the_given_ones() -> None:
    """If a setting is given twice, the last --set counts."""
    given = ("--config", "f", "--set", "node.id=9")
    child = SupervisedBroker(
        {"id": 1, "metrics_host": "", "settings": {"node.id": "1"}}, given
    ).child
    assert child.arguments == [*given, "--set", "node.id=1"]


def test_a_host_without_free_descriptors_keeps_its_other_brokers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    supervised = broker()
    starts: list[float] = []

    def start(child: ChildProcess) -> None:
        starts.append(0.0)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(ChildProcess, "start", start)
    supervisor = HostSupervisor([supervised])
    assert supervisor._turn(0.0)
    assert "Too many open files" in capsys.readouterr().err
    assert supervisor._turn(0.4)
    assert len(starts) == 1, "the next attempt comes after a pause"
    assert supervisor._turn(0.6)
    assert len(starts) == 2


def test_a_log_that_cannot_be_written_does_not_end_the_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class FullDisk(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    supervised = broker()
    supervised.start_at_s = None  # the process was started, and has ended
    monkeypatch.setattr(sys, "stderr", FullDisk())
    assert HostSupervisor([supervised])._turn(1.0)
    assert supervised.start_at_s == 1.5


def test_a_cluster_that_is_still_starting_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """`odradek dev` sets `stop` at Ctrl-C and at SIGTERM."""
    starting = ChildProcess(name="broker-1", module="none", arguments=(), log_path=None)
    monkeypatch.setattr(ChildProcess, "is_running", True)
    stop = threading.Event()
    stop.set()
    with pytest.raises(ChildProcessFailed, match="stopped before broker-1 was ready"):
        starting.wait_ready(3_600, stop)


@pytest.mark.parametrize(
    ("log_format", "is_terminal", "is_text"),
    [
        ("json", True, False),
        ("text", False, True),
        ("auto", True, True),
        ("auto", False, False),
    ],
)
def test_the_supervisors_lines_have_the_form_of_its_brokers_lines(
    monkeypatch: pytest.MonkeyPatch, log_format: str, is_terminal: bool, is_text: bool
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(ChildProcess, "is_running", False)
    supervised = broker()
    supervised.start_at_s = None
    HostSupervisor([supervised], log_format=log_format)._turn(1.0)
    line = written.getvalue()
    assert "Broker process ended" in line
    assert line.startswith("{") is not is_text
