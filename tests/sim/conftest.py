"""Fixtures of the simulator's own tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sim.directed import OPEN


@pytest.fixture(autouse=True)
def stages_are_closed() -> Iterator[None]:
    """Close the tasks of a stage at the end of its test, before the garbage collector would do
    it.
    """
    yield
    while OPEN:
        OPEN.pop().close()
