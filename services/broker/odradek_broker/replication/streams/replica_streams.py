"""The replication streams of one replica: the streams to the followers that it sends data to, and to its leader."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeAlias, TypeVar, assert_never

from odradek_broker.partition import effects as fx
from odradek_broker.partition.events import FollowerSession
from odradek_broker.replication.host_ports import LeaderStreamPort, Surroundings

Host = TypeVar("Host")
StreamEffect: TypeAlias = (
    fx.SendAttached
    | fx.SendDiverged
    | fx.SendSnapshotless
    | fx.SendRefused
    | fx.SendAttach
    | fx.SendDetach
    | fx.SendAck
)
_NONE: Final[dict[FollowerSession, Any]] = {}  # shared by all replicas without an attached follower


class ReplicaStreams(Generic[Host]):
    """Sends the messages of one replica, and stores the streams of the followers that are attached to it."""

    __slots__ = ("_host", "_shared", "to_followers")

    def __init__(self, host: Host, shared: Surroundings[Host]) -> None:
        self._host = host
        self._shared = shared
        self.to_followers: dict[FollowerSession, LeaderStreamPort[Host]] = _NONE

    def carry_out(self, effect: StreamEffect) -> None:
        """Send the message of the effect, if the stream is still open."""
        match effect:
            case fx.SendAttached() | fx.SendDiverged() | fx.SendSnapshotless() | fx.SendRefused():
                self._respond_to_follower(effect)
            case fx.SendAttach():
                stream = self._shared.follower_stream(effect.session_id)
                # While the broker cannot write, the attach is not sent. The replica repeats it later.
                if stream is not None and not self._shared.storage_problem:
                    stream.send_attach(self._host, effect)
            case fx.SendDetach():
                stream = self._shared.follower_stream(effect.session_id)
                if stream is not None:
                    stream.send_detach(self._host)
            case fx.SendAck():
                stream = self._shared.follower_stream(effect.session_id)
                if stream is not None:
                    stream.send_ack(self._host, effect)
            case _:
                assert_never(effect)

    def _respond_to_follower(
        self, effect: fx.SendAttached | fx.SendDiverged | fx.SendSnapshotless | fx.SendRefused
    ) -> None:
        stream = self._shared.leader_stream(effect.session)
        if stream is None:
            return
        stream.send(self._host, effect)
        if isinstance(effect, fx.SendAttached):
            if self.to_followers is _NONE:
                self.to_followers = {}
            self.to_followers[effect.session] = stream
            stream.mark_due(self._host)
        else:
            self.to_followers.pop(effect.session, None)

    def mark_due(self) -> None:
        """Record that there may be data, or a new high watermark, to send to the followers."""
        for stream in self.to_followers.values():
            stream.mark_due(self._host)

    def ended(self, session: FollowerSession) -> LeaderStreamPort[Host] | None:
        """Send no more data in a follower's session. Return its stream, or None if no data was sent in the session."""
        return self.to_followers.pop(session, None)

    def end_all(self) -> None:
        """Send no more data to any follower, because the replica was removed or its role has changed."""
        for stream in self.to_followers.values():
            stream.forget(self._host)
        self.to_followers.clear()
