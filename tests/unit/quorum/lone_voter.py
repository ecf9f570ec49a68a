"""Runs one voter in the simulator; the test sends the messages of the other voters, and reads those
to them.
"""

from __future__ import annotations

from typing import Any

from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.network.wire import Message
from tests.sim.quorum.simulated_node import SimulatedNode
from tests.sim.quorum.world import World


class LoneVoter:
    """Voter 1 of `voters`. The other voters exist only as messages that the test sends."""

    def __init__(self, *, voters: int = 3, seed: int = 1, joined: bool = True, **world: Any):
        self.world = World(seed, voters=voters, joined=joined, **world)
        self.world.sent = []
        self.node = self._start()

    def _start(self) -> SimulatedNode:
        node = self.world.start(1)
        for peer_id in self.world.voters[1:]:
            node.raft.peer_connected(peer_id)
        return node

    def restart(self) -> SimulatedNode:
        """Start the voter again on the same disk."""
        self.node = self._start()
        return self.node

    def receive(self, peer_id: int, kind: str, **fields: Any) -> None:
        """Deliver a message, encoded and decoded as for the network, and let the voter process
        it.
        """
        message = wire.decode(wire.encode({"type": kind, **fields})[4:])
        self.node.entering(lambda: self.node.receive(peer_id, message))

    def settle(self) -> None:
        """Let the disk finish its work."""
        self.world.run_until(lambda: self.node.barrier.clean, 1.0)
        self.world.run(0.001)

    def take_sent(self, kind: str) -> list[tuple[int, Message]]:
        """Return (peer, message) of a kind sent since the last call, and forget all others."""
        sent = [(target, message) for _, target, message in self.world.sent or []]
        self.world.sent = []
        return [(target, message) for target, message in sent if message["type"] == kind]

    def append(
        self,
        leader_id: int,
        term: int,
        previous: tuple[int, int],
        terms: list[int],
        *,
        commit: int,
        text: bytes = b"e",
    ) -> None:
        """Deliver append_entries with entries of `terms` after the entry `previous` (index,
        term).
        """
        self.receive(
            leader_id,
            wire.APPEND_ENTRIES,
            term=term,
            commit_index=commit,
            prevLogIdx=previous[0],
            prevLogTerm=previous[1],
            entries=[
                (b"\0%s%d" % (text, previous[0] + 1 + number), 0, entry_term)
                for number, entry_term in enumerate(terms)
            ],
        )

    def hear_pre_votes(self, *, rounds: int) -> list[tuple[int, Message]]:
        """Let the election timer end this many times; return the (peer, message) pairs of the pre-votes."""
        pre_votes: list[tuple[int, Message]] = []

        def heard() -> bool:
            pre_votes.extend(self.take_sent(wire.PRE_VOTE))
            return len(pre_votes) >= rounds * (len(self.world.voters) - 1)

        assert self.world.run_until(heard, 10.0)
        return pre_votes

    def campaign(self, *, grants: tuple[int, ...]) -> int:
        """Let the election timer end, and let the peers in `grants` grant the pre-vote; return the
        term in which the voter then campaigns.
        """
        self.take_sent(wire.PRE_VOTE)
        message = self.hear_pre_votes(rounds=1)[0][1]
        for peer_id in grants:
            self.receive(
                peer_id,
                wire.PRE_VOTE_REPLY,
                term=message["term"] - 1,
                round=message["round"],
                granted=True,
            )
        self.settle()
        return self.node.raft.term

    def become_leader(self, *, followers: tuple[int, ...] = (2,)) -> int:
        """Let `followers` elect the voter and acknowledge its no-op; return the term."""
        term = self.campaign(grants=followers)
        for peer_id in followers:
            self.receive(peer_id, wire.RESPONSE_VOTE, term=term)
        self.settle()
        for peer_id in followers:
            self.acknowledge(peer_id, term)
        assert self.node.raft.active_epoch == term, self.world.describe()
        return term

    def acknowledge(self, peer_id: int, term: int, index: int | None = None) -> None:
        """Let a follower acknowledge the log up to `index`, by default all of it."""
        last = self.node.raft.log.last_index if index is None else index
        self.receive(
            peer_id,
            wire.NEXT_NODE_IDX,
            term=term,
            next_node_idx=last + 1,
            reset=False,
            success=True,
        )
