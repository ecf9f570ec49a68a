"""The quorum's face: start, propose, listen, feed, status."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from odradek_metadata_quorum.quorum.settings import QuorumSettings
from odradek_metadata_quorum.quorum.state_machine import (
    CommittedEntry,
    StateMachine,
    StateSnapshot,
)
from odradek_metadata_quorum.quorum.status import QuorumRole, QuorumStatus


class Quorum:
    """One voter: a replicated log, elections, and the state machine it feeds.

    Everything runs on the event loop that called `start`; disk writes run on two own threads.
    """

    def __init__(self, settings: QuorumSettings, state_machine: StateMachine) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Load snapshot and log, open the listener, take part. The directory must be formatted.

        Raises `StorageMismatch`, `CorruptStorage`, `OSError` (port in use).
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Hand leadership over if held (bounded), fail what is pending as unknown, close all."""
        raise NotImplementedError

    async def propose(self, payload: bytes, *, epoch: int, timeout_s: float) -> int:
        """Replicate one entry; returns its offset once it is committed and applied here.

        `epoch` is the term the caller decided under: the entry is never appended in another.
        Raises `NotLeader`, `ProposalTooLarge`, `QuorumOverloaded` (nothing was appended) or
        `OutcomeUnknown` (leadership lost, or `timeout_s` passed).
        """
        raise NotImplementedError

    def add_leadership_listener(
        self, *, on_active: Callable[[int], None], on_resigned: Callable[[int], None]
    ) -> None:
        """Call `on_active(epoch)` when this node leads and has applied its own no-op of that term;

        `on_resigned(epoch)` at once when that ends, after every pending proposal has failed.
        Both run on the loop and must not raise.
        """
        raise NotImplementedError

    @property
    def role(self) -> QuorumRole:
        """What this node is at this moment."""
        raise NotImplementedError

    @property
    def leader_id(self) -> int | None:
        """The voter that leads, as far as known; None during an election."""
        raise NotImplementedError

    @property
    def term(self) -> int:
        """Raft's current term: the controller epoch of whoever leads in it."""
        raise NotImplementedError

    @property
    def active_epoch(self) -> int | None:
        """The term in which this node is the active leader, None while it is not."""
        raise NotImplementedError

    @property
    def commit_index(self) -> int:
        """The last entry known to be committed."""
        raise NotImplementedError

    @property
    def applied(self) -> int:
        """The last entry applied to the state machine; never above `commit_index`."""
        raise NotImplementedError

    @property
    def listen_port(self) -> int:
        """The port that peers reach this node at, once started."""
        raise NotImplementedError

    async def wait_applied(self, offset: int, timeout_s: float) -> int:
        """Wait until `applied >= offset`, at most `timeout_s`; returns `applied` either way."""
        raise NotImplementedError

    def entries(self, from_offset: int, bytes_max: int) -> Sequence[CommittedEntry] | None:
        """Applied entries from `from_offset` on, of at most `bytes_max` (at least one entry).

        Empty when there are none yet; None where the log is trimmed: take `latest_snapshot`.
        """
        raise NotImplementedError

    async def latest_snapshot(self) -> StateSnapshot | None:
        """The newest snapshot on disk, None when none was taken yet (then the log is whole)."""
        raise NotImplementedError

    async def transfer_leadership(self, timeout_s: float) -> bool:
        """Hand leadership to the most caught-up peer; False if it stays here or was not here."""
        raise NotImplementedError

    def status(self) -> QuorumStatus:
        """One reading of everything worth a metric."""
        raise NotImplementedError
