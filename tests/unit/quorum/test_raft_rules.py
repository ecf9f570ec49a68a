"""Rules of Raft about entries, terms and restarts, and rules of the code that does a voter's
I/O.
"""

from __future__ import annotations

import builtins
import importlib
import pickle
import sys

import pytest

from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.network.wire import Message
from tests.sim.quorum.world import World
from tests.unit.quorum.lone_voter import LoneVoter


def test_an_acknowledgement_of_an_earlier_term_commits_nothing() -> None:
    """It reports a log that another leader may have truncated since."""
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1, 1], commit=1)
    term = voter.become_leader(followers=(3,))
    offset = voter.node.propose(b"p")
    voter.settle()
    voter.acknowledge(2, term - 1)
    voter.settle()
    assert offset not in voter.world.oracle.acknowledged
    assert voter.node.raft.progress_of(2)[0] == 0
    voter.acknowledge(2, term)
    voter.settle()
    assert offset in voter.world.oracle.acknowledged


def test_a_repeated_message_cuts_nothing_that_follows_it() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1] * 9, commit=1)
    voter.settle()
    voter.append(2, 1, (1, 0), [1] * 4, commit=1)
    voter.append(2, 1, (3, 1), [], commit=1)
    assert voter.node.raft.log.last_index == 10
    voter.settle()
    acknowledged = [m for _, m in voter.take_sent(wire.NEXT_NODE_IDX)]
    assert [m["next_node_idx"] for m in acknowledged] == [11, 6, 4]


def entries_sent(world: World, source: int) -> dict[int, int]:
    """Return how many entries a voter has sent to each other voter since `world.sent` was
    emptied.
    """
    sent = dict.fromkeys((n for n in world.voters if n != source), 0)
    for sender, target, message in world.sent or []:
        if sender == source and message["type"] == wire.APPEND_ENTRIES:
            sent[target] += len(message["entries"])
    return sent


def test_what_is_under_way_is_not_sent_again_with_each_acknowledgement() -> None:
    world = World(1, delay_s=(0.005, 0.006))
    world.start_all()
    leader = world.elect()
    world.run(1.0)
    world.sent = []
    for number in range(100):
        assert leader.propose(b"p%d" % number) is not None
        world.run(0.001)
    world.converge()
    assert entries_sent(world, leader.node_id) == {
        n: 100 for n in world.voters if n != leader.node_id
    }


def test_entries_that_got_lost_are_sent_again() -> None:
    world = World(1)
    world.start_all()
    leader = world.elect()
    world.run(1.0)
    follower = next(n for n in world.voters if n != leader.node_id)
    lost: list[int] = []

    def drop(source: int, target: int, message: Message) -> bool:
        is_first = target == follower and bool(message.get("entries")) and not lost
        if is_first:
            lost.append(target)
        return is_first

    world.drop = drop
    for number in range(10):
        assert leader.propose(b"p%d" % number) is not None
        world.run(0.002)
    last = leader.raft.log.last_index
    assert world.run_until(lambda: world.nodes[follower].raft.applied == last, 0.5)
    assert lost


def test_a_conflicting_tail_is_replaced_in_one_exchange_a_term() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1] * 9, commit=3)
    voter.append(2, 2, (10, 1), [2] * 30, commit=3)
    voter.settle()
    voter.take_sent(wire.NEXT_NODE_IDX)
    voter.append(3, 3, (40, 3), [], commit=3)
    voter.settle()
    answers = [m for _, m in voter.take_sent(wire.NEXT_NODE_IDX)]
    assert [(m["reset"], m["next_node_idx"]) for m in answers] == [(True, 11)]
    voter.append(3, 3, (10, 1), [3, 3], commit=12)
    voter.settle()
    raft = voter.node.raft
    assert [raft.log.term_at(index) for index in (10, 11, 12, 13)] == [1, 3, 3, None]
    assert raft.commit_index == 12


def test_a_restart_keeps_the_entries_behind_its_snapshot() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1] * 60, commit=50)
    voter.world.run(0.2)
    assert voter.node.raft.snapshot is not None
    voter.world.power_cut(1)
    raft = voter.restart().raft
    assert raft.log.last_index == 61
    assert raft.applied < 61


def test_an_entry_that_cannot_be_applied_ends_the_process() -> None:
    voter = LoneVoter()
    voter.node.machine.fail_at = 4
    voter.append(2, 1, (1, 0), [1] * 9, commit=10)
    voter.settle()
    assert voter.node.dead is not None
    assert "entry 4" in voter.node.dead
    assert [offset for offset, _, _ in voter.node.machine.history] == [2, 3]
    voter.take_sent(wire.NEXT_NODE_IDX)
    voter.append(2, 1, (10, 1), [1], commit=11)
    voter.world.run(1.0)
    assert voter.world.sent == []


def test_a_stale_leader_is_told_of_the_term_and_steps_down() -> None:
    voter = LoneVoter()
    voter.append(2, 5, (1, 0), [5], commit=1)
    voter.settle()
    voter.take_sent(wire.NEXT_NODE_IDX)
    voter.append(3, 4, (1, 0), [4], commit=1)
    voter.settle()
    assert [(peer, m["term"]) for peer, m in voter.take_sent(wire.NEXT_NODE_IDX)] == [(3, 5)]
    leader = LoneVoter()
    term = leader.become_leader()
    offset = leader.node.propose(b"p")
    leader.receive(
        3, wire.NEXT_NODE_IDX, term=term + 1, next_node_idx=0, reset=False, success=False
    )
    assert not leader.node.raft.is_leader
    assert leader.node.unknown == [offset]
    assert leader.node.resignations == [term]


def test_a_leader_that_hears_no_majority_steps_down_and_fails_what_is_pending() -> None:
    world = World(1)
    world.start_all()
    leader = world.elect()
    world.commit(2)
    world.isolate(leader.node_id)
    offset = leader.propose(b"p")
    assert world.run_until(lambda: leader.unknown == [offset], 2.0)
    assert not leader.raft.is_leader


def test_a_leader_is_active_only_after_its_own_no_op_is_applied() -> None:
    voter = LoneVoter()
    term = voter.campaign(grants=(2,))
    voter.receive(2, wire.RESPONSE_VOTE, term=term)
    voter.settle()
    assert voter.node.raft.is_leader
    assert voter.node.activations == []
    assert voter.node.raft.propose(b"p", term) is None
    voter.acknowledge(2, term)
    assert voter.node.activations == [term]
    assert voter.node.raft.propose(b"p", term) is not None


def test_two_leaders_of_one_term_are_never_accepted() -> None:
    voter = LoneVoter()
    term = voter.become_leader()
    voter.append(3, term, (1, 0), [term], commit=1)
    assert voter.node.dead is not None
    assert f"lead term {term}" in voter.node.dead


def test_a_slow_peer_is_sent_no_more_than_its_window() -> None:
    world = World(6)
    world.start_all()
    leader = world.elect()
    slow = next(node.node_id for node in world.nodes.values() if node is not leader)
    world.hold(leader.node_id, slow)
    for _ in range(30):
        for _ in range(10):
            leader.propose(b"x" * 1000)
        world.run(0.02)
    waiting = world.queued_bytes(leader.node_id, slow)
    assert waiting < 2 * world.limits.window_bytes_max
    world.converge()


def test_large_entries_are_snapshotted_and_trimmed_by_their_bytes() -> None:
    world = World(6)
    world.start_all()
    leader = world.elect()
    for _ in range(20):
        assert leader.propose(b"x" * 20_000) is not None
        world.run(0.1)
    world.converge()
    for node in world.nodes.values():
        assert node.raft.snapshot is not None, "after fewer entries than the interval"
        assert node.raft.log.payload_bytes < 3 * world.limits.snapshot_entries_bytes_max
        assert len(node.raft.log.entries) < world.limits.snapshot_entries_min


def test_what_a_wiped_follower_once_acknowledged_commits_nothing_more() -> None:
    """Two of five acknowledged an entry.

    One of them returns with an empty disk, so a third acknowledgement makes no majority.
    """
    voter = LoneVoter(voters=5)
    term = voter.become_leader(followers=(2, 3))
    offset = voter.node.propose(b"p")
    voter.settle()
    voter.acknowledge(2, term)
    assert offset not in voter.world.oracle.acknowledged
    voter.receive(2, wire.JOIN_QUERY, round=77)
    voter.acknowledge(3, term)
    voter.settle()
    assert offset not in voter.world.oracle.acknowledged
    voter.acknowledge(2, term)
    voter.settle()
    assert offset in voter.world.oracle.acknowledged


def test_a_leader_whose_process_died_is_replaced_sooner_than_a_silent_one() -> None:
    taken_s = []
    for seed in range(20):
        world = World(seed)
        world.start_all()
        leader = world.elect()
        world.commit(2)
        world.run(0.3)
        killed_s = world.now
        world.kill(leader.node_id)
        assert world.run_until(lambda world=world: world.leader() is not None, 5.0)
        taken_s.append(world.now - killed_s)
    assert sorted(taken_s)[10] < 0.3
    assert max(taken_s) < 1.5


def test_a_broken_connection_to_a_leader_that_lives_deposes_nobody() -> None:
    for seed in range(10):
        world = World(seed)
        world.start_all()
        leader = world.elect()
        world.commit(2)
        follower = next(node for node in world.nodes.values() if node is not leader)
        term = leader.raft.term
        for _ in range(10):
            follower.raft.peer_disconnected(leader.node_id)
            world.run(0.4)
            follower.raft.peer_connected(leader.node_id)
        world.isolate(follower.node_id)
        follower.raft.peer_disconnected(leader.node_id)
        world.run(5.0)
        world.heal()
        world.run(1.0)
        assert leader.raft.is_leader, seed
        assert {node.raft.term for node in world.nodes.values()} == {term}, seed


def test_elections_happen_in_a_five_voter_cluster_that_lost_two() -> None:
    world = World(8, voters=5)
    world.start_all()
    first = world.elect()
    world.commit(5)
    world.power_cut(first.node_id)
    second = world.elect()
    world.commit(5)
    world.power_cut(second.node_id)
    world.elect()
    world.commit(5)
    for node_id in (first.node_id, second.node_id):
        world.start(node_id)
    world.converge()
    assert world.deaths == []


def test_nothing_is_ever_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elections, replication, snapshots and restarts work while pickle is forbidden everywhere."""

    def forbidden(*arguments: object, **named: object) -> object:
        raise RuntimeError("pickle was reached")

    engine_pickle = importlib.import_module("pysyncobj.pickle")
    for module in (pickle, engine_pickle, sys.modules["pysyncobj.syncobj"]):
        for name in ("loads", "load", "dumps", "dump", "Unpickler"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, forbidden)
    monkeypatch.setattr(builtins, "eval", forbidden)
    world = World(3)
    world.start_all()
    for victim in world.voters:
        world.elect()
        world.commit(40)
        world.power_cut(victim)
        world.commit(60)
        world.start(victim)
        world.converge()
    assert world.deaths == []
    assert world.counts["snapshot installed"] > 0


def test_a_pickled_payload_is_only_bytes() -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (exec, ("raise SystemExit('unpickled')",))

    payload = pickle.dumps(Trap())
    world = World(3)
    world.start_all()
    leader = world.elect()
    offset = leader.propose(payload)
    world.run(0.5)
    assert offset is not None
    assert world.oracle.acknowledged[offset] == payload


@pytest.mark.parametrize("kind", ["apply_command", "status", "add", "transfer"])
def test_the_engines_own_back_doors_do_not_exist(kind: str) -> None:
    voter = LoneVoter()
    before = voter.world.sent
    message: Message = {"type": kind, "command": b"\0p", "term": 99, "request_id": 1}
    voter.node.raft.receive(2, message)
    voter.settle()
    assert voter.node.raft.term == 0
    assert voter.world.sent == before
