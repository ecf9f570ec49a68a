"""`odradek top` on a terminal: what it draws on its screen, keys, and a new size."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Self

import pytest

from odradek import sync
from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.tools import need

CLI = [sys.executable, "-m", "odradek.cli.main"]
HOME = "\x1b[H"
SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LONG_NAME = "a-topic-with-a-name-that-is-wider-than-the-whole-terminal-" * 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Yield a cluster with more topics than a small terminal has lines for; one has a long name."""
    need("pseudo-terminals")
    plan = ClusterPlan(brokers=1, controllers=1, data_dir=tmp_path_factory.mktemp("top"))
    with EmbeddedCluster(plan) as cluster:
        cluster.start()
        cluster.wait_ready()
        with sync.Client(cluster.bootstrap) as client:
            for name in (LONG_NAME, *(f"topic-{number:02}" for number in range(30))):
                client.admin.create_topic(name, partitions=1)
            client.admin.alter_group_offsets("readers", {("topic-00", 0): 0})
            with client.producer() as producer:
                producer.send("topic-00", b"1").result(30)
        yield cluster


class Terminal:
    """A pseudo-terminal with `odradek top` in its foreground."""

    def __init__(self, cluster: EmbeddedCluster, columns: int, lines: int) -> None:
        self._output = ""
        self._master, self._slave = os.openpty()
        self.modes = termios.tcgetattr(self._slave)
        self.resize(columns, lines)
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [*CLI, "top", "--interval", "0.2"],
            preexec_fn=lambda: os.login_tty(
                self._slave
            ),  # it gets Ctrl-C and the changes of the size
            env=environment | {"ODRADEK_BOOTSTRAP": cluster.bootstrap, "TERM": "xterm-256color"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def resize(self, columns: int, lines: int) -> None:
        """Set the size; the kernel sends SIGWINCH to the command in the foreground."""
        self.size = columns, lines
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def _read(self) -> None:
        self._output += os.read(self._master, 65536).decode()

    def screen(self, is_wanted: Callable[[list[str]], bool]) -> list[str]:
        """Return the first screen of the current size for which `is_wanted` returns True. Other screens are skipped."""
        columns, lines = self.size
        while True:
            *complete, self._output = self._output.split(HOME)
            for text in complete:
                shown = SEQUENCE.sub("", text).split("\r\n")
                is_whole = len(shown) == lines and all(len(line) == columns for line in shown)
                if is_whole and is_wanted(shown):
                    return shown
            self._read()

    def end(self) -> str:
        """Return the output from now until the process ended."""
        deadline_s = time.monotonic() + 30
        while self.process.poll() is None:
            assert time.monotonic() < deadline_s, "the process has not ended"
            # A process whose output nobody reads blocks as soon as the terminal's buffer is full, and never ends.
            if select.select([self._master], [], [], 0.05)[0]:
                self._read()
        os.set_blocking(self._master, False)
        while True:
            try:
                self._read()
            except BlockingIOError:
                return self._output


def shows(text: str) -> Callable[[list[str]], bool]:
    return lambda screen: any(text in line for line in screen)


def has_rates(screen: list[str]) -> bool:
    """Return whether this is the second view, or a later one: the first one has no rates."""
    return any(re.search(r"topic-00 +1 +0 +0 +[\d.]+", line) for line in screen)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40)])
def test_the_view_fits_the_terminal(cluster: EmbeddedCluster, columns: int, lines: int) -> None:
    with Terminal(cluster, columns, lines) as terminal:
        screen = terminal.screen(has_rates)
        headers = [line.split()[0] for line in screen if line and line.split()[:1]]
        assert [word for word in headers if word in ("broker", "topic", "group")] == [
            *("broker", "topic", "group")
        ]
        assert re.match(r"\d\d:\d\d:\d\d   q: quit   active controller 1   cluster ", screen[0])
        topics = [line for line in screen if re.match(r"(topic-\d|a-topic-)", line)]
        (rest,) = [line for line in screen if line.startswith("and ")]
        # 31 topics and __consumer_offsets; every line of the terminal is used but that for a note.
        internal = sum(line.startswith("__") for line in screen)
        assert int(rest.split()[1]) == 31 + 1 - len(topics) - internal
        assert sum(1 for line in screen if not line.strip()) <= 3 + 3
        assert any(line.startswith("readers ") and " 1 " in line for line in screen)


def test_a_long_name_takes_one_line(cluster: EmbeddedCluster) -> None:
    with Terminal(cluster, 80, 60) as terminal:
        screen = terminal.screen(shows("topic-29"))
        (line,) = [line for line in screen if line.startswith("a-topic-with")]
        assert "…" in line
        assert not any("the-whole-terminal" in line for line in screen[1:])


def test_a_new_size_draws_the_view_again(cluster: EmbeddedCluster) -> None:
    with Terminal(cluster, 80, 24) as terminal:
        terminal.screen(has_rates)
        terminal.resize(120, 60)
        terminal.screen(shows("topic-29"))
        terminal.resize(60, 15)
        terminal.screen(shows("readers "))


@pytest.mark.parametrize(
    ("keys", "status"), [(b"q", 0), (b"x\x1bQ", 0), (b"\x03", 128 + signal.SIGINT)]
)
def test_keys_end_it_and_the_terminal_is_as_before(
    cluster: EmbeddedCluster, keys: bytes, status: int
) -> None:
    with Terminal(cluster, 80, 24) as terminal:
        terminal.screen(shows("topic-00"))
        terminal.type(keys)
        rest = terminal.end()
        assert terminal.process.returncode == status
        assert "\x1b[?1049l" in rest, "the alternate screen is left"
        assert "\x1b[?25h" in rest, "the cursor is shown"
        assert "Traceback" not in rest
        assert termios.tcgetattr(terminal._slave) == terminal.modes


def test_a_cluster_that_stops_is_told_on_the_screen(cluster: EmbeddedCluster) -> None:
    with Terminal(cluster, 80, 24) as terminal:
        terminal.screen(has_rates)
        cluster.brokers[1].signal(signal.SIGSTOP)
        try:
            terminal.screen(shows("waiting: "))
            terminal.type(b"q")
            terminal.end()
            assert terminal.process.returncode == 0
        finally:
            cluster.brokers[1].signal(signal.SIGCONT)
