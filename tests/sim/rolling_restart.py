"""P22: an operator restarts the brokers one after the other, and no ISR falls below its minimum.

The operator continues when the restarted broker reports that it has caught up, as an orchestrator does with a readiness
probe. In some restarts the other brokers cannot resolve the broker's name for a while, as in a cluster whose name
servers cache their answers.
"""

from __future__ import annotations

from collections.abc import Callable

from odradek_broker.cluster.catch_up import CatchUp
from odradek_protocol.identity import BrokerId
from tests.sim.cluster import BrokerNode, Cluster
from tests.sim.invariants import InvariantBroken
from tests.sim.scheduler import SECOND

STOP_US_MAX = 10 * SECOND
READY_US_MAX = 40 * SECOND
NAME_CACHED_US_MAX = 30 * SECOND
CATCH_UP_TIMEOUT_MS = 60_000

RunUntil = Callable[[Callable[[], bool], int, str], None]


class RollingRestart:
    """A restart of all brokers of a healthy cluster."""

    def __init__(
        self, cluster: Cluster, topics: tuple[str, ...], minimum: int, run_until: RunUntil
    ) -> None:
        """Each partition of `topics` must have at least `minimum` in-sync replicas all the time."""
        self._cluster = cluster
        self._topics = topics
        self._minimum = minimum
        self._run_until = run_until

    def play(self) -> None:
        """Run the restart. The cluster must be healthy before it and after it."""
        for node in self._cluster.brokers.values():
            self._restart(node)
        self._cluster.scheduler.counters["rolling restarts"] += 1

    def _restart(self, node: BrokerNode) -> None:
        life = node.life
        assert life is not None
        life.begin_shutdown()
        self._until(lambda: not node.is_up, STOP_US_MAX, "a broker does not stop")
        scheduler = self._cluster.scheduler
        if scheduler.chance(0.5):
            resolved_us = scheduler.now_us + scheduler.between(SECOND, NAME_CACHED_US_MAX)
            self._cluster.undialled_until_us[node.broker_id] = resolved_us
        node.start()
        probe = CatchUp(BrokerId(node.broker_id), timeout_ms=CATCH_UP_TIMEOUT_MS)

        def is_ready() -> bool:
            now = node.life
            if now is None or not now.is_serving:
                return False
            assert now.broker is not None
            connected = now.broker.followers.connected
            return not probe.why_not(now.image, connected, node.clock.monotonic_ms())

        self._until(is_ready, READY_US_MAX, "a broker is not ready")

    def _until(self, condition: Callable[[], bool], limit_us: int, what: str) -> None:
        def checked() -> bool:
            self._check()
            return condition()

        self._run_until(checked, limit_us, what)

    def _check(self) -> None:
        image = self._cluster.log.image
        for name in self._topics:
            topic = image.topic(name)
            assert topic is not None, name
            for state in topic.partitions:
                if len(state.isr) < self._minimum:
                    text = f"{name}-{state.partition} has the ISR {state.isr} in a rolling restart"
                    raise InvariantBroken("P22", text)
