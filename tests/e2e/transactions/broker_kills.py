"""Kills one broker after the other while a client runs, as a fault that every client must survive."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from odradek.embedded import EmbeddedCluster

EVERY_S: Final = 20.0
COUNT_MIN: Final = 3
READY_S_MAX: Final = 120.0


@dataclass
class BrokerKills:
    """Kills a broker with SIGKILL every `EVERY_S` seconds and starts it again, the brokers in turn. Use `killing`."""

    cluster: EmbeddedCluster
    count: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None

    @property
    def is_possible(self) -> bool:
        """Whether there are other brokers that serve meanwhile."""
        return len(self.cluster.brokers) > 1

    @property
    def is_short(self) -> bool:
        """Whether fewer than `COUNT_MIN` brokers were killed so far, so that the client must continue."""
        return self.is_possible and self.count < COUNT_MIN

    def run(self) -> None:
        """Kill brokers until `is_over` is set."""
        try:
            victims = list(self.cluster.brokers.values())
            while not self.is_over.wait(EVERY_S):
                victim = victims[self.count % len(victims)]
                victim.kill()
                victim.start()
                victim.wait_ready(READY_S_MAX)
                self.count += 1
        except BaseException as error:
            self.failure = error
            raise


@contextmanager
def killing(cluster: EmbeddedCluster) -> Iterator[BrokerKills]:
    """Kill brokers in the background, unless there is only one. At the end all of them are ready again."""
    kills = BrokerKills(cluster)
    thread = threading.Thread(target=kills.run)
    if kills.is_possible:
        thread.start()
    try:
        yield kills
    finally:
        kills.is_over.set()
        if kills.is_possible:
            thread.join(2 * READY_S_MAX)
    assert kills.failure is None, kills.failure
