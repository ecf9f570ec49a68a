"""Elections: votes, pre-votes, stalls, and the transfer of leadership."""

from __future__ import annotations

from odradek_metadata_quorum.network import wire
from tests.sim.quorum.world import World
from tests.unit.quorum.lone_voter import LoneVoter


def test_a_single_voter_elects_itself_at_once() -> None:
    world = World(1, voters=1)
    world.start_all()
    assert world.run_until(lambda: world.leader() is not None, 0.1)
    world.commit(3)


def test_a_late_vote_of_the_last_term_does_not_eat_the_real_one() -> None:
    voter = LoneVoter()
    first = voter.campaign(grants=(2,))
    second = voter.campaign(grants=(2,))
    assert second == first + 1
    voter.receive(2, wire.RESPONSE_VOTE, term=first)
    assert not voter.node.raft.is_leader
    voter.receive(2, wire.RESPONSE_VOTE, term=second)
    assert voter.node.raft.is_leader


def test_a_vote_counts_once() -> None:
    voter = LoneVoter(voters=5)
    term = voter.campaign(grants=(2, 3))
    for _ in range(3):
        voter.receive(2, wire.RESPONSE_VOTE, term=term)
    assert not voter.node.raft.is_leader
    voter.receive(3, wire.RESPONSE_VOTE, term=term)
    assert voter.node.raft.is_leader


def test_a_stall_of_its_own_deposes_no_leader() -> None:
    """The whole machine stops for 5 s; the leader resumes first, and must not treat the gap as
    silence of its followers.
    """
    world = World(5)
    world.start_all()
    leader = world.elect()
    world.commit(3)
    term = leader.raft.term
    world.run(0.05)
    for node in world.nodes.values():
        node.frozen_until = world.now + (5.0 if node is leader else 5.3)
        if node is not leader:
            world.hold(node.node_id, leader.node_id)
    world.run(5.4)  # the leader has woken first, and no response of the others has reached it yet
    world.heal()
    world.run(3.0)
    assert leader.raft.is_leader
    assert leader.raft.term == term
    assert leader.resignations == []


def test_what_came_during_a_stall_is_read_before_silence_is_judged() -> None:
    """The second stall within a second is not excused, but the leader's heartbeat waits in the
    socket.
    """
    voter = LoneVoter()
    world = voter.world
    voter.append(2, 1, (1, 0), [1], commit=1)
    voter.settle()
    for stall_s in (0.3, 1.2):
        voter.append(2, 1, (2, 1), [], commit=1)
        voter.node.frozen_until = world.now + stall_s
        world.run(stall_s + 1e-6)
    voter.append(2, 1, (2, 1), [], commit=1)
    world.run(0.4)
    assert voter.take_sent(wire.PRE_VOTE) == []
    world.run(1.0)
    assert voter.take_sent(wire.PRE_VOTE) != [], "then it is silent"


def test_a_restarted_voter_helps_nobody_against_a_leader_it_has_not_heard_yet() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1, 1], commit=3)
    voter.settle()
    voter.world.kill(1)
    voter.restart()
    voter.take_sent(wire.PRE_VOTE_REPLY)
    voter.receive(3, wire.PRE_VOTE, term=2, round=1, last_log_index=9, last_log_term=1)
    voter.settle()
    assert [m["granted"] for _, m in voter.take_sent(wire.PRE_VOTE_REPLY)] == [False]


def test_consent_is_void_once_this_voter_has_voted_for_another() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1], commit=1)
    pre_votes = voter.hear_pre_votes(rounds=1)
    raft = voter.node.raft
    reply = {"term": 1, "round": pre_votes[0][1]["round"], "granted": True}
    raft.receive(2, {"type": wire.PRE_VOTE_REPLY, **reply})  # consent, but no step yet
    voter.receive(3, wire.REQUEST_VOTE, term=2, last_log_index=9, last_log_term=1)
    voter.settle()
    assert [peer for peer, _ in voter.take_sent(wire.RESPONSE_VOTE)] == [3]
    assert (raft.term, raft.engine.vote) == (2, 3)


def test_consent_of_an_earlier_round_counts_for_nothing() -> None:
    voter = LoneVoter()
    pre_votes = voter.hear_pre_votes(rounds=15)  # more than a round lasts
    first, last = pre_votes[0][1]["round"], pre_votes[-1][1]["round"]
    assert last > first
    term = voter.node.raft.term
    voter.receive(2, wire.PRE_VOTE_REPLY, term=term, round=first, granted=True)
    voter.settle()
    assert voter.node.raft.term == term
    voter.receive(2, wire.PRE_VOTE_REPLY, term=term, round=last, granted=True)
    voter.settle()
    assert voter.node.raft.term == term + 1


def test_an_answer_that_takes_longer_than_the_timer_still_counts() -> None:
    voter = LoneVoter()
    pre_votes = voter.hear_pre_votes(rounds=2)
    term = voter.node.raft.term
    voter.receive(2, wire.PRE_VOTE_REPLY, term=term, round=pre_votes[0][1]["round"], granted=True)
    voter.settle()
    assert voter.node.raft.term == term + 1


def test_a_candidate_stands_back_for_a_better_one_that_asks_at_the_same_time() -> None:
    for better, log_end in (True, (9, 1)), (False, (1, 0)):
        voter = LoneVoter()
        for _ in range(2):  # the first one still meets the short timer of a new cluster
            voter.append(2, 1, (1, 0), [1], commit=1)
        voter.take_sent(wire.PRE_VOTE)
        pre_votes = voter.hear_pre_votes(rounds=1)
        term = voter.node.raft.term
        voter.receive(
            3,
            wire.PRE_VOTE,
            term=term + 1,
            round=1,
            last_log_index=log_end[0],
            last_log_term=log_end[1],
        )
        voter.receive(
            2, wire.PRE_VOTE_REPLY, term=term, round=pre_votes[0][1]["round"], granted=True
        )
        voter.settle()
        assert voter.node.raft.term == (term if better else term + 1)


def test_a_vote_counts_as_hearing_a_leader_from_when_it_leaves() -> None:
    """The voter's disk takes longer than every timer, so it must neither campaign nor grant a
    pre-vote to another candidate meanwhile.
    """
    disk_s = 2 * LoneVoter().world.timers.election_max_s
    voter = LoneVoter(disk_delay_s=(disk_s, disk_s))
    world = voter.world
    assert world.run_until(lambda: bool(voter.take_sent(wire.PRE_VOTE)), 2.0)
    voter.receive(2, wire.REQUEST_VOTE, term=3, last_log_index=9, last_log_term=2)
    assert not world.run_until(lambda: bool(voter.take_sent(wire.PRE_VOTE)), disk_s - 0.01)
    assert world.run_until(lambda: bool(voter.take_sent(wire.RESPONSE_VOTE)), 0.02)
    for is_consent in (False, True):
        voter.receive(3, wire.PRE_VOTE, term=4, round=1, last_log_index=9, last_log_term=2)
        replies = voter.take_sent(wire.PRE_VOTE_REPLY)
        assert [message["granted"] for _, message in replies] == [is_consent]
        if not is_consent:
            world.run(world.timers.election_min_s + world.timers.tick_s)


def test_a_voter_with_the_id_0_leads_and_votes_as_any_other() -> None:
    """The library identifies a voter by a number, and must not treat 0 as no voter."""
    world = World(3, first_id=0)
    world.start_all()
    leaders = set()
    for _ in range(6):
        leader = world.elect()
        leaders.add(leader.node_id)
        world.commit(2)
        world.run(0.5)
        assert {node.raft.leader_id for node in world.nodes.values()} == {leader.node_id}
        world.kill(leader.node_id)
        assert world.run_until(lambda: world.leader() is not None, 5.0)
        world.start(leader.node_id)
    assert 0 in leaders
    world.converge()


def test_voters_in_one_process_keep_their_own_clocks() -> None:
    """The library has one clock for the process; each voter sets it before it calls the library."""
    first, second = LoneVoter(), LoneVoter()
    assert first.hear_pre_votes(rounds=1)
    assert second.hear_pre_votes(rounds=1)


def test_an_isolated_voter_returns_without_deposing_the_leader() -> None:
    for seed in range(5):
        world = World(seed)
        world.start_all()
        leader = world.elect()
        world.commit(2)
        away = next(node for node in world.nodes.values() if node is not leader)
        term = leader.raft.term
        world.isolate(away.node_id)
        world.run(10.0)
        world.heal()
        world.run(3.0)
        assert leader.raft.is_leader, seed
        assert {node.raft.term for node in world.nodes.values()} == {term}, seed


def test_leadership_is_handed_over_at_once_and_elections_still_work_after_it() -> None:
    world = World(2)
    world.start_all()
    leader = world.elect()
    world.commit(3)
    world.run(0.2)
    successor_id = leader.raft.best_successor()
    assert successor_id is not None
    leader.raft.hand_over(successor_id)
    successor = world.nodes[successor_id]
    assert world.run_until(lambda: successor.raft.active_epoch is not None, 0.2)
    assert leader.resignations != []
    world.kill(successor_id)
    assert world.run_until(lambda: world.leader() not in (None, successor), 5.0)
    world.commit(2)


def test_only_the_leader_of_the_term_may_ask_to_campaign() -> None:
    voter = LoneVoter()
    voter.append(2, 3, (1, 0), [3], commit=1)
    voter.receive(3, wire.TIMEOUT_NOW, term=3)
    voter.receive(2, wire.TIMEOUT_NOW, term=2)
    voter.settle()
    assert voter.node.raft.term == 3
    voter.receive(2, wire.TIMEOUT_NOW, term=3)
    voter.settle()
    assert voter.node.raft.term == 4


def test_a_voter_that_hears_no_leader_names_none() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1], commit=1)
    voter.settle()
    assert voter.node.raft.leader_id == 2
    voter.hear_pre_votes(rounds=1)
    assert voter.node.raft.leader_id is None
    voter.append(2, 1, (2, 1), [], commit=1)
    assert voter.node.raft.leader_id == 2, "it is back"


def test_a_leader_agrees_to_nobodys_campaign() -> None:
    voter = LoneVoter()
    term = voter.campaign(grants=(2,))
    voter.receive(2, wire.RESPONSE_VOTE, term=term)
    assert voter.node.raft.is_leader
    voter.receive(3, wire.PRE_VOTE, term=term + 1, round=1, last_log_index=9, last_log_term=term)
    voter.settle()
    assert [m["granted"] for _, m in voter.take_sent(wire.PRE_VOTE_REPLY)] == [False]
