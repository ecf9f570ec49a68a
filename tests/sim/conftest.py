"""Fixtures of the simulator's own tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sim.directed import OPEN


@pytest.fixture(autouse=True)
def stages_are_closed() -> Iterator[None]:
    """Close the tasks of each Stage at the end of its test. Otherwise the garbage collector would close them during a
    later test.
    """
    yield
    while OPEN:
        OPEN.pop().close()
