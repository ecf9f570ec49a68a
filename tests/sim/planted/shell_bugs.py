"""Planted bugs of the broker's code that does I/O: replication streams, disk work, heartbeats, leases, registration and
the metadata feed.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from odradek_broker.cluster import isr_proposals, metadata_feed
from odradek_broker.cluster.heartbeat import SentBeats
from odradek_broker.cluster.membership import Membership
from odradek_broker.partition import events as ev
from odradek_broker.replication.disk.log_work import LogWork
from odradek_broker.replication.partition import Partition
from odradek_broker.replication.streams.follower_stream import FollowerStream
from odradek_broker.replication.streams.leader_stream import LeaderStream
from tests.sim.planted.bug import Bug, replace_in


def _credit_lost(stack: ExitStack) -> None:
    replace_in(stack, LeaderStream, "add_credit", lambda self, credit_bytes: None)


def _registration_of_an_older_life(stack: ExitStack) -> None:
    replace_in(
        stack, Membership, "is_registered", lambda self, image: self.broker_id in image.brokers
    )


def _gap_in_the_feed(stack: ExitStack) -> None:
    replace_in(stack, metadata_feed, "_require_next", lambda image, offset: None)


def _lease_from_the_response(stack: ExitStack) -> None:
    take = SentBeats.take

    def late(self: SentBeats, response: Any) -> int | None:
        return None if take(self, response) is None else self._clock.boottime_ms()

    replace_in(stack, SentBeats, "take", late)


def _acknowledged_before_the_sync(stack: ExitStack) -> None:
    original = LogWork.sync

    def sync(self: LogWork) -> None:
        original(self)
        self._host.step(ev.Synced(durable_end=self._log.log_end_offset))

    replace_in(stack, LogWork, "sync", sync)


def _produce_past_the_gate(stack: ExitStack) -> None:
    replace_in(stack, Partition, "gate_produce", lambda self, outcome, acks: outcome)


def _watermark_without_data_lost(stack: ExitStack) -> None:
    def add_watermarks(self: LeaderStream, messages: Any) -> None:
        self._watermark_due.clear()
        self._is_watermark_time = False

    replace_in(stack, LeaderStream, "_add_watermarks", add_watermarks)


def _acknowledgement_lost(stack: ExitStack) -> None:
    original = FollowerStream.send_ack

    def send_ack(self: FollowerStream, host: Any, effect: Any) -> None:
        if not self._attaches and not self._acks:
            original(self, host, effect)

    replace_in(stack, FollowerStream, "send_ack", send_ack)


def _epoch_of_an_older_life_in_proposals(stack: ExitStack) -> None:
    original = isr_proposals.IsrProposals._send

    async def send(self: Any, batch: Any) -> None:
        self.broker_epoch -= 1
        try:
            await original(self, batch)
        finally:
            self.broker_epoch += 1

    replace_in(stack, isr_proposals.IsrProposals, "_send", send)


def _cut_told_before_it_is_done(stack: ExitStack) -> None:
    original = LogWork.cut

    def cut(self: LogWork, begin: Any, done: Any, *, end_offset: Any) -> None:
        original(self, begin, done, end_offset=end_offset)
        self._host.step(done)

    replace_in(stack, LogWork, "cut", cut)


SHELL_BUGS = (
    Bug(number=80, name="credit lost", plant=_credit_lost),
    Bug(
        number=83,
        name="registration of an earlier process accepted",
        plant=_registration_of_an_older_life,
        found_by=3,
    ),
    Bug(number=84, name="gap in the metadata feed accepted", plant=_gap_in_the_feed, is_rare=True),
    Bug(
        number=85,
        name="lease counted from the response",
        plant=_lease_from_the_response,
        is_rare=True,
    ),
    Bug(number=87, name="acknowledged before the sync", plant=_acknowledged_before_the_sync),
    Bug(
        number=89,
        name="produce response passes the gate unchecked",
        plant=_produce_past_the_gate,
        found_by=6,
    ),
    Bug(
        number=92,
        name="high watermark without records not sent",
        plant=_watermark_without_data_lost,
    ),
    Bug(number=93, name="acknowledgement lost", plant=_acknowledgement_lost, found_by=24),
    Bug(
        number=95,
        name="ISR proposed with an older broker epoch",
        plant=_epoch_of_an_older_life_in_proposals,
    ),
    Bug(number=99, name="truncation reported before it is done", plant=_cut_told_before_it_is_done),
)
