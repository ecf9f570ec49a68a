"""Rolling updates and faults on a real Kubernetes whose DNS caches for 30 s, under acks=all load:
no record is lost.
"""

from __future__ import annotations

import pytest

from tests.e2e.kubernetes.conftest import Report
from tests.e2e.kubernetes.installation import WORKLOADS, Installation

PAUSE_S_MAX = 1.0
LOST_NODE_PAUSE_S_MAX = 5.0
QUORUM_ROLL_S_MAX = 30.0
CLIENT_NODE = 1  # DNS is there, too
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_two_rolling_updates_pause_briefly(
    installation: Installation, report: Report, workload: str
) -> None:
    with installation.load(node=CLIENT_NODE) as load:
        load.gap_s()
        rounds = [(installation.roll(workload), load.gap_s()) for _ in range(2)]
    rolls_s, pauses_s = [took_s for took_s, _ in rounds], [pause_s for _, pause_s in rounds]
    report(workload=workload, pauses_s=pauses_s, bar_s=PAUSE_S_MAX, rolls_s=rolls_s)
    assert max(pauses_s) <= PAUSE_S_MAX
    if workload == "statefulset/quorum":
        assert max(rolls_s) <= QUORUM_ROLL_S_MAX


def test_a_killed_process_pauses_briefly(installation: Installation, report: Report) -> None:
    with installation.load(node=CLIENT_NODE) as load:
        load.gap_s()
        pauses_s = {}
        for pod in ("broker-2", f"quorum-{installation.active_controller()}"):
            installation.kill(pod)
            installation.wait_ready(pod)
            pauses_s[pod] = load.gap_s()
    report(pauses_s=pauses_s, bar_s=PAUSE_S_MAX)
    assert max(pauses_s.values()) <= PAUSE_S_MAX


def test_a_pod_deleted_by_force_pauses_briefly(installation: Installation, report: Report) -> None:
    with installation.load(node=CLIENT_NODE) as load:
        load.gap_s()
        installation.kubectl("delete", "pod", "broker-1", "--grace-period=0", "--force")
        installation.wait_rolled("statefulset/broker")
        pause_s = load.gap_s()
    report(pause_s=pause_s, bar_s=PAUSE_S_MAX)
    assert pause_s <= PAUSE_S_MAX


def test_a_drained_node_pauses_briefly(installation: Installation, report: Report) -> None:
    node = next(n for n in (2, 3) if n == installation.node_of("broker-3") or n == 3)
    drain = ("drain", f"node-{node}", "--delete-emptydir-data", "--force", "--timeout=180s")
    with installation.load(node=CLIENT_NODE) as load:
        load.gap_s()
        installation.cluster.kubectl(*drain)
        drained_s = load.gap_s()
        installation.cluster.kubectl("uncordon", f"node-{node}")
        for workload in WORKLOADS:
            installation.wait_rolled(workload)
        back_s = load.gap_s()
    report(pause_s=drained_s, back_pause_s=back_s, bar_s=PAUSE_S_MAX)
    assert max(drained_s, back_s) <= PAUSE_S_MAX


def test_a_lost_node_pauses_for_seconds(installation: Installation, report: Report) -> None:
    """The node is silent: its connections neither end nor carry data."""
    node = next(n for n in (3, 2) if n in {installation.node_of(f"broker-{i}") for i in (1, 2, 3)})
    with installation.load(node=CLIENT_NODE) as load:
        load.gap_s()
        installation.cluster.lose_node(node)
        lost_s = load.gap_s()
        installation.cluster.bring_node_back(node)
        for workload in WORKLOADS:
            installation.wait_rolled(workload)
        back_s = load.gap_s()
    report(pause_s=lost_s, bar_s=LOST_NODE_PAUSE_S_MAX, back_pause_s=back_s)
    assert lost_s <= LOST_NODE_PAUSE_S_MAX
    assert back_s <= PAUSE_S_MAX
