"""Runs each scenario of liveness.txt line by line, and compares the controller's decisions with the
text.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_metadata_quorum.controller.liveness import Liveness
from odradek_protocol.identity import BrokerId


def scenarios() -> list[tuple[str, list[str]]]:
    text = Path(__file__).with_name("liveness.txt").read_text()
    blocks = [block.splitlines() for block in text.split("scenario ")[1:]]
    return [(lines[0], [line for line in lines[1:] if line.strip()]) for lines in blocks]


def fresh(stall_ms_min: int = 1000) -> Liveness:
    core = Liveness(session_ms=3000, grace_ms=500, stall_ms_min=stall_ms_min)
    core.activate([], now_ms=0)
    return core


@pytest.mark.parametrize(("name", "lines"), scenarios(), ids=[name for name, _ in scenarios()])
def test_transcript(name: str, lines: list[str]) -> None:
    core, seen = fresh(), []
    for line in lines:
        if line.startswith("  "):
            continue
        seen.append(line)
        if line == "standby":
            core = Liveness(session_ms=3000, grace_ms=500, stall_ms_min=1000)
            continue
        _, now, verb, *brokers = line.split()
        ids = [BrokerId(int(broker)) for broker in brokers]
        match verb:
            case "activate":
                core.activate(ids, now_ms=int(now))
            case "watch":
                core.watch(ids[0], now_ms=int(now))
            case "heartbeat":
                core.heartbeat(ids[0], now_ms=int(now))
            case "broken":
                core.stream_broken(ids[0], now_ms=int(now))
            case "tick":
                fences = core.tick(now_ms=int(now))
                told = [f"  fence {f.broker_id} {f.found.value}" for f in fences]
                seen += told or ["  nothing"]
    assert seen == lines, name


@given(
    st.lists(
        st.tuples(
            st.integers(0, 400), st.sampled_from(["beat", "break", "tick"]), st.integers(1, 4)
        ),
        max_size=200,
    )
)
def test_no_broker_is_fenced_twice_and_none_that_was_just_heard(
    events: list[tuple[int, str, int]],
) -> None:
    core, now = fresh(), 0
    fenced: set[int] = set()
    heard: dict[int, int] = {}
    for broker in range(1, 5):
        core.watch(BrokerId(broker), now_ms=0)
    for step, what, broker in events:
        now += step
        if what == "beat":
            core.heartbeat(BrokerId(broker), now_ms=now)
            heard[broker] = now
        elif what == "break":
            core.stream_broken(BrokerId(broker), now_ms=now)
        else:
            for fence in core.tick(now_ms=now):
                assert fence.broker_id not in fenced
                assert now - heard.get(fence.broker_id, -3000) >= 500
                fenced.add(fence.broker_id)
