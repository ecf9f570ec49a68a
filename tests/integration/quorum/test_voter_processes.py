"""With real processes, disks and mutual TLS, no combination of kill -9 loses an acknowledged
entry.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.quorum.voter_cluster import VoterCluster

ELECTION_S_MIN = 8
"""No voter begins an election by itself earlier after it lost its leader."""


def trickle_everywhere(cluster: VoterCluster) -> None:
    for node_id in cluster.running():
        cluster.say(node_id, do="trickle")


def wait_for_more_acks(cluster: VoterCluster, count: int) -> None:
    wanted = len(cluster.acknowledged()) + count
    cluster.wait_for(lambda: len(cluster.acknowledged()) >= wanted, f"{wanted} acknowledgements")


def assert_nothing_lost(cluster: VoterCluster) -> None:
    acknowledged = cluster.acknowledged()
    last = max(acknowledged)
    for node_id in cluster.node_ids:
        state = cluster.wait_for(
            lambda node_id=node_id: (
                found if max(found := cluster.dump(node_id), default=0) >= last else None
            ),
            f"node {node_id} to apply {last}",
        )
        lost = {at: text for at, text in acknowledged.items() if state.get(at) != text}
        assert lost == {}, f"node {node_id} lost {len(lost)} of {len(acknowledged)}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.long)])
def test_kill_9_of_leader_and_of_all_under_load_loses_nothing(tmp_path: Path, rounds: int) -> None:
    with VoterCluster(tmp_path, snapshot_interval_entries=100, snapshot_entries_min=20) as cluster:
        trickle_everywhere(cluster)
        wait_for_more_acks(cluster, 300)
        for _ in range(rounds):
            leader = cluster.leader()
            cluster.kill(leader)
            wait_for_more_acks(cluster, 200)
            cluster.start(leader)
            cluster.say(leader, do="trickle")
            wait_for_more_acks(cluster, 100)
        for _ in range(rounds):
            for node_id in cluster.node_ids:
                cluster.kill(node_id)
            for node_id in cluster.node_ids:
                cluster.start(node_id)
            trickle_everywhere(cluster)
            wait_for_more_acks(cluster, 200)
        assert_nothing_lost(cluster)


def test_sigterm_hands_leadership_over_before_the_process_goes(tmp_path: Path) -> None:
    elections = {
        "election_timeout_min_ms": ELECTION_S_MIN * 1000,
        "election_timeout_max_ms": ELECTION_S_MIN * 1000 + 1000,
        "lost_leader_timeout_min_ms": ELECTION_S_MIN * 1000,
        "lost_leader_timeout_max_ms": ELECTION_S_MIN * 1000 + 1000,
        "leader_fallback_ms": ELECTION_S_MIN * 1000,
    }
    with VoterCluster(tmp_path, timers=elections) as cluster:
        trickle_everywhere(cluster)
        wait_for_more_acks(cluster, 50)
        leader = cluster.leader()
        before = [event["time_s"] for event in cluster.events(leader, "ack")]
        assert cluster.terminate(leader) == 0
        successor = cluster.leader()
        assert successor != leader
        first = cluster.wait_for(
            lambda: cluster.events(successor, "ack"), "the successor's first acknowledgement"
        )[0]
        assert first["time_s"] - before[-1] < ELECTION_S_MIN, "an election takes longer"
