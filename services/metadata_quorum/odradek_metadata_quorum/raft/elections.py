"""Elections: votes, pre-votes, leader stickiness, check-quorum, and the confirmation of the leadership for reads.

pysyncobj decides when to start an election and which candidate has won. `Elections` handles the messages before and
after the library, and adds these rules:

- *Pre-vote* (Raft thesis 9.6): before a voter raises its term, it asks the other voters whether it could win an
  election. If the voter could not win, the other voters are not disturbed. A vote counts once for each term and voter.
  A voter that may have lost the record of its votes does not vote (`joining.py`).
- *Stickiness*: a voter that hears a leader, which means that a message of the leader arrived within the minimum
  election timeout, does not consent to an election. If its connection to the leader broke, the voter waits a shorter
  time than after mere silence, because either the leader's process has ended or the connection is soon open again. If a
  majority still hears the leader, no election takes place.
- *A voter that gave its vote* behaves as if it heard a leader from the time when the vote is sent, because the first
  heartbeat of the new leader needs a round trip. While the vote waits for this voter's disk, the voter does not start
  an election.
- *A stall of this process* does not count as silence of the leader (`LoopTurns`).
- *Check-quorum*: a leader that gets no responses from a majority steps down.
- *Read index* (Raft thesis 6.4): a leader responds to a read only after a majority has confirmed its leadership
  (`ReadIndex`).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.network.wire import Message
from odradek_metadata_quorum.raft.engine import Engine
from odradek_metadata_quorum.raft.shell import RaftTimers

Confirmed = Callable[[bool], None]


class PreVote:
    """The pre-vote rounds of one voter, in which it asks for consent to an election, without network and clock.

    When the election timer of a voter ends, the voter starts a *round*: it asks all other voters whether they would
    vote for it in the next term, and raises its term only if a majority consents. A voter consents only if it has lost
    its connection to the leader or received no message of a leader for the minimum election timeout, and the
    candidate's log is not behind its own log. So a voter that was isolated returns with its old term and deposes no
    leader. If the election timer ends again during a round, the question is repeated with the same round number,
    because a response may take longer than the timer.

    `approved` means that a majority has consented and that the consent was not used yet. The consent becomes invalid
    when the next round begins, when this voter votes for another candidate, when the term changes, or when this voter
    hears a leader.
    """

    def __init__(self, node_id: int, voter_count: int) -> None:
        self._node_id = node_id
        self._voter_count = voter_count
        self._granted: set[int] = set()
        self._running = False
        self._started_s = 0.0
        self.round = 0
        self.approved = False

    def is_running(self, *, since_s: float) -> bool:
        """Return whether a round is in progress that began after `since_s`."""
        return self._running and self._started_s > since_s

    def start(self, now_s: float) -> None:
        """Begin the next round. If there is only one voter, it consents at once."""
        self.round += 1
        self._started_s = now_s
        self._granted = {self._node_id}
        self._running = True
        self.approved = False
        self._count()

    def grant(self, peer_id: int, round_number: int) -> bool:
        """Count the consent of a peer in a round. Return whether a majority consents now."""
        if not self._running or round_number != self.round:
            return False
        self._granted.add(peer_id)
        self._count()
        return self.approved

    def yields_to(self, other: tuple[int, int, int], *, own: tuple[int, int, int]) -> bool:
        """End this voter's own round if the other candidate is better. Return whether a round was ended.

        Candidates are compared by (last term, last index, node id). Otherwise two candidates that ask at the same time
        would consent to each other and split the votes, perhaps repeatedly if responses take as long as the timers.
        """
        if other <= own or not (self._running or self.approved):
            return False
        self.clear()
        return True

    def use(self) -> bool:
        """Use the consent for one election. Return whether there was consent."""
        approved, self.approved = self.approved, False
        return approved

    def clear(self) -> None:
        """End the round in progress, and discard a consent that was not used."""
        self._running = False
        self.approved = False

    def _count(self) -> None:
        if len(self._granted) * 2 > self._voter_count:
            self.approved = True
            self._running = False


class LoopTurns:
    """Measures the turns (iterations) of this voter's event loop, to distinguish silence of other voters from a stall
    of this process.

    A message that has arrived but was not read yet looks like silence. Therefore silence is measured up to the last
    moment at which every message that had arrived was read. While turns are short, that moment is now. During and
    after a *long* turn (of more than `long_s`), that moment is the start of the long turn, until the following turn has
    read the messages that arrived meanwhile.

    The whole machine may have been suspended, perhaps together with other machines, so that no voter was silent.
    Therefore the length of a long turn is *forgiven*: it is added to all deadlines. This happens only if no turn was
    forgiven within the last `forgiven_interval_s`. In a process that is always slow, nearly every turn is long, and the
    deadlines would otherwise move nearly as fast as time passes.
    """

    def __init__(self, now_s: float, *, long_s: float, forgiven_interval_s: float) -> None:
        self._long_s = long_s
        self._forgiven_interval_s = forgiven_interval_s
        self._stepped_s = now_s
        self._read_s = now_s
        self._forgiven_s: float | None = None

    def step(self, now_s: float) -> float:
        """Begin a step of the node. Return the seconds to add to all deadlines, which is nearly always 0."""
        began_s = self._stepped_s
        if now_s <= began_s:
            return 0.0
        self._stepped_s = now_s
        if now_s - began_s <= self._long_s:
            self._read_s = now_s
            return 0.0
        self._read_s = began_s
        if not self._may_forgive(began_s):
            return 0.0
        self._forgiven_s = now_s
        return now_s - began_s

    def read_until_s(self, now_s: float) -> float:
        """Return the time up to which all messages that had arrived have been read."""
        return self._stepped_s if now_s - self._stepped_s > self._long_s else self._read_s

    def _may_forgive(self, began_s: float) -> bool:
        forgiven_s = self._forgiven_s
        return forgiven_s is None or began_s - forgiven_s >= self._forgiven_interval_s


class ReadIndex:
    """Confirms that this node was still the leader when a read arrived, by rounds of questions to the other voters.

    A leader that is cut off does not know that another voter has been elected, and lacks the entries that the new
    leader commits. So the response to a read waits for a *round*, in which the leader asks all voters for their terms.
    If a majority, including the leader, is still in the leader's term, no other leader was elected before the round
    began. So the leader's state at that time was the newest.

    Each read is confirmed by a round that began after the read arrived: reads that arrive during a round wait together
    for the next one. If responses are late, the question is sent again with the same round number.
    """

    def __init__(self, voter_count: int) -> None:
        self._voter_count = voter_count
        self._waiting: list[Confirmed] = []
        self._running: list[Confirmed] = []
        self._agreed: set[int] = set()
        self.round: int | None = None

    @property
    def is_due(self) -> bool:
        """Whether reads wait for the next round and no round is in progress."""
        return self.round is None and bool(self._waiting)

    def ask(self, confirmed: Confirmed) -> None:
        """Request a confirmation. `confirmed` is called once: with True when a round that began after this call has
        confirmed the leadership, or with False if the leadership has ended before.
        """
        self._waiting.append(confirmed)

    def begin(self, round_number: int) -> None:
        """Begin a round for all reads that wait."""
        assert self.is_due, self.round
        self._running, self._waiting = self._waiting, []
        self._agreed.clear()
        self.round = round_number
        self._conclude()

    def agree(self, peer_id: int, round_number: int) -> None:
        """Record that a voter has responded in a round that it is in the leader's term."""
        if round_number == self.round:
            self._agreed.add(peer_id)
            self._conclude()

    def end(self) -> None:
        """Refuse all reads, because the leadership has ended."""
        refused = self._running + self._waiting
        self._running, self._waiting, self.round = [], [], None
        for confirmed in refused:
            confirmed(False)

    def _conclude(self) -> None:
        if 2 * (1 + len(self._agreed)) <= self._voter_count:
            return
        reads, self._running, self.round = self._running, [], None
        for confirmed in reads:
            confirmed(True)


class Elections:
    """The election timer, the votes and the leadership of one voter. `may_vote` is False while the voter may have lost
    the record of its votes (`joining.py`).
    """

    def __init__(
        self, engine: Engine, *, timers: RaftTimers, randomness: random.Random, may_vote: bool
    ) -> None:
        voter_count = len(engine.peer_ids) + 1
        self.may_vote = may_vote
        self.pre_vote = PreVote(engine.node_id, voter_count)
        self._engine = engine
        self._timers = timers
        self._random = randomness
        self._is_lowest = not any(peer_id < engine.node_id for peer_id in engine.peer_ids)
        self._read_index = ReadIndex(voter_count)
        self._read_asked_s = 0.0
        self._votes: set[tuple[int, int]] = set()
        self._heard_s = engine.now_s()
        self._turns = LoopTurns(
            self._heard_s,
            long_s=timers.tick_s + timers.heartbeat_s,
            forgiven_interval_s=timers.election_max_s,
        )
        self._quorum_checked_s = 0.0
        # Whether this voter gave a vote that is not on disk yet, and so not sent.
        self._vote_leaves = False
        self._lost_leader_s = 0.0  # the time at which the connection to the leader broke
        engine.election_deadline_s = self._heard_s + self._timeout_s(is_new_cluster=True)

    # Timers.

    def begin_step(self) -> None:
        """Begin a step: extend the deadlines if this process was stalled. A leader also checks that a majority
        responds.
        """
        now_s = self._engine.now_s()
        if stall_s := self._turns.step(now_s):
            self._forgive(stall_s)
        if self._engine.is_leader and now_s >= self._quorum_checked_s + self._timers.tick_s:
            self._quorum_checked_s = now_s
            self._check_quorum(now_s)

    def _forgive(self, stall_s: float) -> None:
        """Extend all deadlines by `stall_s`, the time for which this process was stalled."""
        engine = self._engine
        self._heard_s += stall_s
        engine.election_deadline_s += stall_s
        for peer_id in engine.peer_ids:
            responded_s = engine.responded_s(peer_id)
            if responded_s is not None:
                engine.note_response(peer_id, responded_s + stall_s)

    def _check_quorum(self, now_s: float) -> None:
        """Step down if a majority has not responded for `fallback_s`, because another voter may lead by now."""
        engine = self._engine
        since_s = self._turns.read_until_s(now_s) - self._timers.fallback_s
        responding = 1
        for peer_id in engine.peer_ids:
            responded_s = engine.responded_s(peer_id)
            responding += responded_s is not None and responded_s > since_s
        if 2 * responding <= len(engine.peer_ids) + 1:
            engine.step_down()

    def election_timeout_s(self) -> float:
        """Return a new election timeout in seconds: how long to wait for a leader from now on."""
        return self._timeout_s(is_new_cluster=self._engine.term == 0)

    def _timeout_s(self, *, is_new_cluster: bool) -> float:
        if is_new_cluster and self._is_lowest:
            # In a new cluster only the voter with the lowest id starts an election early, so that votes are not split.
            return self._timers.heartbeat_s
        return self._random.uniform(self._timers.election_min_s, self._timers.election_max_s)

    def _restart_timer(self) -> None:
        self._engine.election_deadline_s = self._engine.now_s() + self.election_timeout_s()

    def campaign_soon(self) -> None:
        """Do not wait for a leader. If this is the only voter, or the voter that starts the first election of a new
        cluster, the election timer ends at the next step.
        """
        self._heard_s = self._engine.now_s() - self._timers.election_min_s
        if self.election_timeout_s() <= self._timers.heartbeat_s or not self._engine.peer_ids:
            self._engine.election_deadline_s = 0.0

    # Leaders.

    def heard_leader(self) -> None:
        """Record that a message of the current leader arrived."""
        self._heard_s = self._engine.now_s()
        self.pre_vote.clear()

    def hears_leader(self) -> bool:
        """Return whether this voter must not consent to an election: it leads, gave a vote that is not on disk yet, or
        has received a message of a leader within the minimum election timeout and not lost the connection since.
        """
        if self._engine.is_leader or self._vote_leaves:
            return True
        heard_s_ago = self._turns.read_until_s(self._engine.now_s()) - self._heard_s
        return self._lost_leader_s <= self._heard_s and heard_s_ago < self._timers.election_min_s

    def peer_disconnected(self, peer_id: int) -> None:
        """Shorten the election timer if the connection to the leader broke."""
        engine, timers = self._engine, self._timers
        if peer_id != engine.leader_id:
            return
        self._lost_leader_s = engine.now_s()
        patience_s = self._random.uniform(timers.lost_leader_min_s, timers.lost_leader_max_s)
        engine.election_deadline_s = min(
            engine.election_deadline_s, self._lost_leader_s + patience_s
        )

    def became_durable(self) -> None:
        """Restart the election timer if the disk write that has ended includes a vote, which is sent now. Giving a vote
        counts as hearing a leader.
        """
        if self._vote_leaves and self._engine.barrier.is_vote_durable:
            self._vote_leaves = False
            self._heard_s = self._engine.now_s()
            self._restart_timer()

    # Confirmation of the leadership, for linearizable reads.

    def confirm_leadership(self, confirmed: Confirmed) -> None:
        """Call `confirmed(True)` when a majority has confirmed that no other voter was elected before this call.

        Call `confirmed(False)` if this node is not the leader, or if its leadership ends before the confirmation. The
        caller must call `step` soon.
        """
        if self._engine.halted or not self._engine.is_leader:
            confirmed(False)
        else:
            self._read_index.ask(confirmed)

    def drive_reads(self) -> None:
        """Begin a round for waiting reads, and repeat the question of a round whose responses are late.

        The question is a pre-vote for the term in which this node already leads. No voter consents to such a pre-vote,
        and each responds with its own term. So voters of all releases understand the question.
        """
        reads = self._read_index
        if reads.is_due:
            self.pre_vote.round += 1
            reads.begin(self.pre_vote.round)
            self._read_asked_s = 0.0
        if reads.round is None:
            return
        now_s = self._engine.now_s()
        if now_s >= self._read_asked_s + self._timers.heartbeat_s:
            self._read_asked_s = now_s
            self._ask_all(self._engine.term, reads.round)

    def lost_leadership(self) -> None:
        """Refuse all reads that wait for a confirmation, because the leadership ended."""
        self._read_index.end()

    # Campaigns.

    def may_campaign(self) -> bool:
        """Return whether this voter may raise its term and start an election now. Otherwise ask for consent, if a
        pre-vote round is due.
        """
        engine = self._engine
        now_s = engine.now_s()
        if self._turns.read_until_s(now_s) < engine.election_deadline_s:
            return False  # a heartbeat may have arrived and not be read yet
        if not self.may_vote or self._vote_leaves:
            self._restart_timer()
            return False
        if not self.pre_vote.approved and not self.pre_vote.is_running(
            since_s=now_s - self._timers.election_max_s
        ):
            self.pre_vote.start(now_s)
        if self.pre_vote.use():
            self._votes.clear()
            return True
        self._restart_timer()
        engine.forget_leader()
        self._ask_all(engine.term + 1, self.pre_vote.round)
        return False

    def _ask_all(self, term: int, round_number: int) -> None:
        """Send a pre-vote for `term` to all voters. Each responds with its own term and whether it consents."""
        _, last_index, last_term = self._engine.log.entries[-1]
        for peer_id in self._engine.peer_ids:
            self._engine.tell(
                peer_id,
                {
                    "type": wire.PRE_VOTE,
                    "term": term,
                    "round": round_number,
                    "last_log_index": last_index,
                    "last_log_term": last_term,
                },
            )

    def before_term(self, term: int, vote: int | None) -> None:
        """Prepare for a change of the term or the vote: discard a consent for another term, and start no election until
        the vote was sent.
        """
        if term > self._engine.term or vote not in (None, self._engine.node_id):
            self.pre_vote.clear()
        self._vote_leaves = vote is not None

    # Messages.

    def on_request_vote(self, peer_id: int, message: Message) -> None:
        """Handle a candidate's request for this node's vote."""
        if self.may_vote:
            self._engine.receive(peer_id, message)

    def on_response_vote(self, peer_id: int, message: Message) -> None:
        """Handle a vote for this node, in the message's term."""
        if message["term"] > self._engine.term:
            self._engine.follow_term(message["term"])
        elif message["term"] == self._engine.term and self._is_first_vote(message["term"], peer_id):
            self._engine.receive(peer_id, message)

    def _is_first_vote(self, term: int, peer_id: int) -> bool:
        if (term, peer_id) in self._votes:
            return False
        self._votes.add((term, peer_id))
        return True

    def on_pre_vote(self, peer_id: int, message: Message) -> None:
        """Handle a pre-vote: the question of a voter that wants to start an election, or of a leader that wants to
        confirm its leadership.
        """
        engine = self._engine
        if not self.may_vote and message["term"] <= engine.term:
            # A leader wants to confirm its leadership. This voter must not confirm it, because it may have voted for a
            # later leader and lost the record of this vote.
            return
        _, last_index, last_term = engine.log.entries[-1]
        log_end = (message["last_log_term"], message["last_log_index"])
        granted = (
            self.may_vote
            and not self.hears_leader()
            and message["term"] > engine.term
            and log_end >= (last_term, last_index)
        )
        if granted and self.pre_vote.yields_to(
            (*log_end, peer_id), own=(last_term, last_index, engine.node_id)
        ):
            self._restart_timer()
        engine.tell(
            peer_id,
            {
                "type": wire.PRE_VOTE_REPLY,
                "term": engine.term,
                "round": message["round"],
                "granted": granted,
            },
        )

    def on_pre_vote_reply(self, peer_id: int, message: Message) -> None:
        """Handle a voter's response to a pre-vote."""
        engine = self._engine
        if message["term"] > engine.term:
            engine.follow_term(message["term"])
        elif engine.is_leader:
            if message["term"] == engine.term:
                self._read_index.agree(peer_id, message["round"])
        elif message["granted"] and self.pre_vote.grant(peer_id, message["round"]):
            engine.election_deadline_s = 0.0

    def on_timeout_now(self, peer_id: int, message: Message) -> None:
        """Start an election at once, without pre-vote, because the leader hands over its leadership to this voter."""
        engine = self._engine
        if message["term"] == engine.term and peer_id == engine.leader_id and self.may_vote:
            self.pre_vote.approved = True
            engine.election_deadline_s = 0.0
