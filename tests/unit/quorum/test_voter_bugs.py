"""An internal error of a voter ends its process, wherever on the event loop it happens; the voter
must send nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek_metadata_quorum.raft.quorum import Quorum
from odradek_metadata_quorum.settings import QuorumSettings
from odradek_metadata_quorum.storage.data_directory import format_storage
from tests.unit.quorum.test_proposals import _Recorder


def in_a_woken_step(quorum: Quorum) -> None:
    quorum._voter.wake(0.0)


def in_a_message(quorum: Quorum) -> None:
    quorum._voter.network._on_connected(2)


@pytest.mark.parametrize(
    ("method", "cause"), [("step", in_a_woken_step), ("peer_connected", in_a_message)]
)
async def test_a_bug_ends_the_process_and_says_what_it_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    cause: Callable[[Quorum], None],
) -> None:
    format_storage(tmp_path / "q", cluster_id="c", node_id=1, voters=[1])
    settings = QuorumSettings(
        node_id=1, cluster_id="c", voters={1: ("127.0.0.1", 0)}, data_dir=tmp_path / "q"
    )
    ends: list[tuple[str, BaseException | None]] = []
    machine: Any = _Recorder()
    quorum = Quorum(settings, machine, fatal=lambda reason, error: ends.append((reason, error)))
    active = asyncio.Event()
    quorum.add_leadership_listener(
        on_active=lambda epoch: active.set(), on_resigned=lambda epoch: None
    )
    await quorum.start()
    async with asyncio.timeout(20):
        await active.wait()
        bug = AssertionError("a bug")

        def fail(*_: object) -> None:
            raise bug

        with monkeypatch.context() as planted:
            # The timer of the quorum steps as well: without it only this cause is left.
            quorum._voter._supervisor.cancel()
            planted.setattr(quorum._voter.node, method, fail)
            cause(quorum)
            while not ends:  # noqa: ASYNC110  # of a process that would be gone
                await asyncio.sleep(0)
        assert ends[0] == ("a bug in the quorum", bug)
        assert quorum._voter.node.engine.halted
        await quorum.stop()
