"""A demo that fails says so once: it names the brokers whose replicas do not come back, and its progress ends."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import SimpleNamespace
from typing import Any, Self

import pytest

from odradek.cli.output import EXIT_ERROR
from odradek.errors import BrokersUnavailable
from odradek_demo import __main__ as command
from odradek_demo import run


async def test_the_brokers_that_are_not_in_sync_again_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Described:
        async def describe_topic(self, name: str) -> Any:
            partitions = [
                SimpleNamespace(replicas=(1, 2, 3), isr=(1, 3)),
                SimpleNamespace(replicas=(3, 1, 2), isr=(3, 1, 2)),
            ]
            return SimpleNamespace(partitions=partitions)

    monkeypatch.setattr(run, "_SETTLE_S_MAX", -1.0)
    admin: Any = Described()
    with pytest.raises(TimeoutError, match=r"replicas of broker 2 are not in sync .*--keep-data"):
        await run._wait_for_full_isr(admin)


class Cluster:
    """A cluster without processes."""

    bootstrap = "127.0.0.1:9090"
    has_ended = False

    def __init__(self, plan: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        Cluster.has_ended = True

    def start(self) -> None: ...

    def wait_ready(self) -> None: ...


async def works_beside(*, failing: str, killed: list[bool]) -> None:
    """Run a stage and the kills at the same time. One of them fails, as `failing` says, or none."""

    async def kill() -> None:
        await asyncio.sleep(0)
        if failing == "kills":
            raise TimeoutError("broker 2 did not become ready")
        killed.append(True)

    async with run._beside(kill()) as killing:
        if failing == "produce":
            raise BrokersUnavailable(tried=["127.0.0.1:9090"])
        await (asyncio.Event().wait() if failing == "kills" else killing)


@pytest.mark.parametrize(
    ("failing", "shown"),
    [("produce", "tried 127.0.0.1:9090"), ("kills", "broker 2 did not become ready")],
)
def test_a_stage_that_fails_is_shown_once_and_ends_the_progress(
    failing: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ticking: list[threading.Thread] = []

    async def run_demo(cluster: object, flights: object, *, rate: int, progress: Any) -> None:
        progress("produce", 1, 10)
        ticking.extend(t for t in threading.enumerate() if t.name == "demo progress")
        await works_beside(failing=failing, killed=[])

    monkeypatch.setattr(command, "EmbeddedCluster", Cluster)
    monkeypatch.setattr(command, "read_flights", list)
    monkeypatch.setattr(command, "run_demo", run_demo)
    monkeypatch.setattr(sys, "argv", ["odradek demo"])
    monkeypatch.setattr(Cluster, "has_ended", False)
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == EXIT_ERROR
    assert Cluster.has_ended
    (thread,) = ticking
    assert not thread.is_alive()
    out, err = capsys.readouterr()
    assert err.count(shown) == 1
    assert "Traceback" not in err
    assert "stop processes" not in err, "a stage that never ran"
    assert not out


async def test_kills_that_end_with_the_stage_are_no_error() -> None:
    killed: list[bool] = []
    await works_beside(failing="", killed=killed)
    assert killed
