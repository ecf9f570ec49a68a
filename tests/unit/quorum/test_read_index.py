"""Responses that write no record wait until a majority has confirmed that no other voter leads."""

from __future__ import annotations

from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.raft.elections import ReadIndex
from tests.sim.quorum.world import World
from tests.unit.quorum.lone_voter import LoneVoter


def test_who_asks_during_a_round_waits_for_the_next_one() -> None:
    reads, answers = ReadIndex(3), list[tuple[str, bool]]()
    reads.ask(lambda is_leader: answers.append(("a", is_leader)))
    reads.ask(lambda is_leader: answers.append(("b", is_leader)))
    reads.begin(7)
    reads.ask(lambda is_leader: answers.append(("c", is_leader)))
    reads.agree(2, 6)
    assert answers == []
    reads.agree(2, 7)
    assert answers == [("a", True), ("b", True)]
    assert reads.is_due
    reads.begin(8)
    reads.agree(3, 7)
    reads.end()
    assert answers[2:] == [("c", False)]


def test_a_majority_of_five_is_two_others() -> None:
    reads, answers = ReadIndex(5), list[bool]()
    reads.ask(answers.append)
    reads.begin(1)
    reads.agree(2, 1)
    reads.agree(2, 1)
    assert answers == []
    reads.agree(3, 1)
    assert answers == [True]


def test_a_single_voter_confirms_itself() -> None:
    world = World(1, voters=1)
    world.start_all()
    leader = world.elect()
    leader.read()
    world.run(0.001)
    assert [was_answered for was_answered, _ in world.reads] == [True]


def test_a_deposed_leader_answers_no_read() -> None:
    """The old leader is cut off and believes that it leads, while another leader commits."""
    for seed in range(10):
        world = World(seed, joined=True)
        world.start_all()
        old = world.elect()
        world.commit(3)
        world.isolate(old.node_id)

        def both_lead(world: World = world) -> bool:
            return sum(node.raft.active_epoch is not None for node in world.nodes.values()) == 2

        if not world.run_until(both_lead, 5.0):
            continue
        new = world.leader()
        assert new is not None
        while old.raft.active_epoch is not None:
            new.propose(b"newer")
            old.read()
            world.run(0.02)
        assert world.reads
        assert not any(was_answered for was_answered, _ in world.reads), seed
        return
    raise AssertionError("no two leaders at once in any of the seeds")


def test_reads_share_rounds_and_take_one_round_trip() -> None:
    world = World(3, joined=True, disk_delay_s=(0.5, 0.5))
    world.start_all()
    leader = world.elect()
    world.run(1.0)
    world.sent = []
    for _ in range(1000):
        leader.propose(b"slow")
        leader.read()
        world.run(0.0001)
    world.run(0.02)
    assert [was_answered for was_answered, _ in world.reads] == [True] * 1000
    assert max(duration_s for _, duration_s in world.reads) < 0.02, "no wait for the disk"
    questions = [message for _, _, message in world.sent if message["type"] == wire.PRE_VOTE]
    assert len(questions) < 200, "for two voters"


def test_a_round_whose_messages_are_lost_is_asked_again() -> None:
    world = World(4, joined=True)
    world.start_all()
    leader = world.elect()
    world.commit(1)
    lost = 2

    def drop(source: int, target: int, message: wire.Message) -> bool:
        nonlocal lost
        if message["type"] != wire.PRE_VOTE or not lost:
            return False
        lost -= 1
        return True

    world.drop = drop
    leader.read()
    assert world.run_until(lambda: bool(world.reads), 0.5)
    assert world.reads[0][0]


def confirmed_by(voter: LoneVoter, *, term_behind: int = 0, round_behind: int = 0) -> list[bool]:
    """Return what a leader concludes from one response to its request for confirmation."""
    term = voter.become_leader()
    answers: list[bool] = []
    voter.node.raft.confirm_leadership(answers.append)
    voter.node.step()
    questions = voter.take_sent(wire.PRE_VOTE)
    assert {message["term"] for _, message in questions} == {term}, "nobody can consent to that"
    voter.receive(
        2,
        wire.PRE_VOTE_REPLY,
        term=term - term_behind,
        round=questions[0][1]["round"] - round_behind,
        granted=False,
    )
    return answers


def test_only_answers_to_this_round_from_within_the_term_confirm() -> None:
    assert confirmed_by(LoneVoter()) == [True]
    assert confirmed_by(LoneVoter(), term_behind=1) == []
    assert confirmed_by(LoneVoter(), round_behind=1) == []


def test_a_voter_that_may_have_forgotten_a_vote_confirms_nobody() -> None:
    for joined in (False, True):
        voter = LoneVoter(joined=joined)
        voter.append(2, 3, (1, 0), [3], commit=1)
        voter.settle()
        voter.take_sent(wire.PRE_VOTE_REPLY)
        voter.receive(2, wire.PRE_VOTE, term=3, round=1, last_log_index=2, last_log_term=3)
        assert len(voter.take_sent(wire.PRE_VOTE_REPLY)) == joined
