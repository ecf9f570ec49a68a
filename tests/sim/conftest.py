"""Fixtures of the simulator's own tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sim.directed import OPEN


@pytest.fixture(autouse=True)
def stages_are_closed() -> Iterator[None]:
    """What runs on a stage ends with its test, not when it is collected."""
    yield
    while OPEN:
        OPEN.pop().close()
