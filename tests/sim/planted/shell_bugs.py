"""Planted bugs of the shell: streams, hosts, disk work, heartbeat, lease, registration and feed."""

from __future__ import annotations

from contextlib import ExitStack

from odradek_broker.cluster.metadata_feed import MetadataFeed
from odradek_broker.replication.streams.leader_stream import LeaderStream
from tests.sim.planted.bug import Bug, replace_in


def _credit_lost(stack: ExitStack) -> None:
    replace_in(stack, LeaderStream, "add_credit", lambda self, credit_bytes: None)


def _gap_in_the_feed(stack: ExitStack) -> None:
    replace_in(stack, MetadataFeed, "_require_next", lambda self, offset: None)


SHELL_BUGS = (
    Bug(number=80, name="credit lost", plant=_credit_lost),
    Bug(number=84, name="gap in the metadata feed swallowed", plant=_gap_in_the_feed, is_rare=True),
)
