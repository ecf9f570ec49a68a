"""The demo names the brokers whose replicas do not come back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

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
