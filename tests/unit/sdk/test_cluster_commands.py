"""`odradek cluster unregister` waits for a broker that was just stopped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from odradek.admin.descriptions import BrokerDescription, ClusterDescription
from odradek.cli.cluster import wait_until_fenced


class Described:
    """An admin client, to which a broker is fenced from a certain call on."""

    def __init__(self, *, fenced_from: int) -> None:
        self.fenced_from, self.calls = fenced_from, 0

    async def describe_cluster(self) -> ClusterDescription:
        self.calls += 1
        broker = BrokerDescription(
            broker_id=4,
            broker_epoch=1,
            listeners=(),
            rack="",
            leader_count=0,
            is_fenced=self.calls >= self.fenced_from,
            is_in_shutdown=True,
        )
        return ClusterDescription(
            cluster_id="c",
            active_controller_id=1,
            controller_epoch=1,
            controller_endpoints=(),
            brokers=(broker,),
        )


async def test_a_broker_that_was_just_stopped_is_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin: Any = Described(fenced_from=3)
    await wait_until_fenced(admin, 4, poll_s=0)
    assert admin.calls == 3
    told = capsys.readouterr()
    assert told.err == "broker 4 still has a session: waiting up to 15 s for the session to end\n"
    assert told.out == ""


async def test_who_interrupts_the_wait_is_told_that_the_broker_stays_registered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    is_waiting = asyncio.Event()

    class Noticed(Described):
        async def describe_cluster(self) -> ClusterDescription:
            is_waiting.set()
            return await super().describe_cluster()

    admin: Any = Noticed(fenced_from=1_000)
    waiting = asyncio.create_task(wait_until_fenced(admin, 4))
    await is_waiting.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert capsys.readouterr().err.splitlines()[-1] == (
        "interrupted: broker 4 is still registered; run the command again to remove it"
    )


async def test_nothing_is_waited_for_if_the_broker_is_fenced_or_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin: Any = Described(fenced_from=1)
    await wait_until_fenced(admin, 4)
    await wait_until_fenced(admin, 9)
    assert admin.calls == 2
    assert capsys.readouterr().err == ""


async def test_a_broker_that_runs_is_not_waited_for_without_end() -> None:
    admin: Any = Described(fenced_from=1_000)
    await wait_until_fenced(admin, 4, poll_s=1.0, wait_s_max=0.5)
    assert admin.calls == 1
