"""A process that has imported what every test needs, and forks for each run, so that a run starts
at once.

Importing pytest, hypothesis and gRPC takes seconds, many times as long as the quickest tests of a
mutant. The process has one thread. It reads jobs from its standard input, one in each JSON line,
and writes the exit status of each, or null if the run did not end in time. Each run has its own process
group, which is killed at its end, so that no process of a test remains. `WarmRunner` is
the other end of the pipes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from typing import IO

from tests.mutants import sitecustomize

SEEDS = "seeds"  # the first argument of a run of simulator seeds instead of pytest
_PRELOADED = (
    *("pytest", "hypothesis.strategies", "hypothesis.stateful", "hypothesis.extra.pytestplugin"),
    *("asyncio", "grpc.aio", "google.protobuf", "msgspec", "pysyncobj", "xdist", "logging.config"),
)
PYTEST = (
    *("-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "tests.mutants.plugin"),
    # The plugins that are imported before pytest begins have no assertions that pytest should rewrite.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


class WarmRunner:
    """Runs jobs in forks of one warm process, one at a time. `close` ends the process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, arguments: list[str], environment: dict[str, str], *, timeout_s: float
    ) -> int | None:
        """Return the exit status of pytest, or of simulator seeds, with these arguments; None after
        `timeout_s`.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"arguments": arguments, "environment": environment, "timeout_s": timeout_s}
        print(json.dumps(job), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the warm process ended"
        status: int | None = json.loads(line)
        return status

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def main() -> None:
    for module in _PRELOADED:
        importlib.import_module(module)
    statuses = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(job["arguments"], job["environment"], statuses)
        status = _wait(child, job["timeout_s"])
        print(json.dumps(status), file=statuses, flush=True)


def _run(arguments: list[str], environment: dict[str, str], statuses: IO[str]) -> None:
    """Run one job in the child, and exit."""
    status = 70
    try:
        os.setsid()
        statuses.close()
        output = os.open(
            environment.pop("MUTANT_OUTPUT", os.devnull), os.O_CREAT | os.O_RDWR, 0o600
        )
        for descriptor in range(3):
            os.dup2(output, descriptor)
        os.environ.update(environment)
        sitecustomize.install()
        if arguments[0] == SEEDS:
            from tests.mutants import seeds

            status = seeds.main(arguments[1:])
        else:
            import pytest

            status = int(pytest.main([*PYTEST, *arguments]))
        sys.stdout.flush()
    except BaseException as error:
        print(repr(error), flush=True)
        status = 1
    finally:
        os._exit(status)


def _wait(child: int, timeout_s: float) -> int | None:
    """Return the child's exit status, or None if it had to be killed.

    When the function returns, the child's process group has ended.
    """
    descriptor = os.pidfd_open(child)
    try:
        is_done, _, _ = select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if is_done else None


if __name__ == "__main__":
    main()
