"""Transactions of one producer on a network that delays and loses messages, while leaders and
coordinators move.

Hypothesis chooses each step, and the oracle of TransactionWorld checks each append. Once the faults
are over, the transaction that was decided ends in every log, and what clients learned about their
batches is true.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odradek_broker.partition.events import RegistrationMode
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.partition.transaction_world import HERE, Batch, Sent, TransactionWorld

ADD, VERIFY = RegistrationMode.ADD, RegistrationMode.VERIFY
STEPS = (
    ("send", 6),
    ("again", 2),
    ("respond", 4),
    ("hear", 4),
    ("mark", 3),
    ("mark_without_response", 1),
    ("send_markers", 3),
    ("commit", 1),
    ("abort", 1),
    ("time_out", 1),
    ("fence", 1),
    ("fail_over", 1),
    ("move_leader", 1),
    ("tick", 2),
)
NAMES = [name for name, weight in STEPS for _ in range(weight)]


class Client:
    """A producer that follows the protocol, and batches of an earlier producer that arrive late
    over old connections.
    """

    def __init__(self, world: TransactionWorld) -> None:
        self.world = world
        self.epoch = 0
        self.sequence = 0
        self.number: int | None = None
        self.batches: list[tuple[int, int, int | None, Sent]] = []

    def send(self) -> None:
        """Send the next batch of the present transaction; begin a transaction if there is none."""
        coordinator = self.world.coordinator
        if self.world.mode is VERIFY and not self._add():
            return
        if self.epoch != coordinator.epoch:
            self.epoch, self.sequence = coordinator.epoch, 0
        self._send(self.epoch, self.sequence, self.number)
        self.sequence += 1

    def _add(self) -> bool:
        coordinator = self.world.coordinator
        if self.epoch != coordinator.epoch:
            self.epoch, self.sequence = coordinator.epoch, 0
        if coordinator.add(self.epoch, HERE) is not ErrorCode.NONE:
            return False
        assert coordinator.now is not None
        self.number = coordinator.now.number
        return True

    def _send(self, epoch: int, sequence: int, number: int | None) -> None:
        sent = self.world.send(epoch, sequence, number=number)
        self.batches.append((epoch, sequence, number, sent))

    def send_again(self, index: int) -> None:
        """Deliver a copy of an earlier batch.

        With transaction.version 0 or 1 it arrives before its transaction ends: after that, only its
        sequence number shows that it is not part of the next transaction.
        """
        batches = self.batches
        if self.world.mode is VERIFY:
            now = self.world.coordinator.now
            batches = [b for b in batches if now and now.outcome is None and b[2] == now.number]
        if batches:
            epoch, sequence, number, _ = batches[index % len(batches)]
            self._send(epoch, sequence, number)


def run(mode: RegistrationMode, steps: list[tuple[str, int]]) -> TransactionWorld:
    world = TransactionWorld(mode=mode)
    client = Client(world)
    coordinator = world.coordinator
    is_bumped = mode is ADD
    for name, index in steps:
        match name:
            case "send":
                client.send()
            case "again":
                client.send_again(index)
            case "respond" if world.registrations:
                world.respond(index % len(world.registrations))
            case "hear" if world.responses:
                world.hear(index % len(world.responses))
            case "mark" if world.markers:
                world.mark(index % len(world.markers))
            case "mark_without_response" if world.markers:
                world.mark(index % len(world.markers), loses_response=True)
            case "send_markers":
                world.send_markers()
            case "commit" | "abort":
                world.end(is_commit=name == "commit", is_bumped=is_bumped)
            case "time_out":
                world.end(is_commit=False, is_bumped=True)
            case "fence" if coordinator.now is None or coordinator.now.outcome is None:
                coordinator.fence()
            case "fail_over":
                coordinator.fail_over()
            case "move_leader":
                world.move_leader()
            case "tick":
                world.tick()
    world.settle()
    check(world)
    return world


def check(world: TransactionWorld) -> None:
    now = world.coordinator.now
    assert now is None or now.outcome is None, f"hanging: {now}"
    open_one = world._open()
    assert open_one is now or open_one is None, f"{open_one} is open in the log"
    stored = [
        (entry.batch.producer_epoch, entry.batch.base_sequence)
        for entry in world.log
        if isinstance(entry, Batch)
    ]
    assert len(set(stored)) == len(stored), "a batch is there twice"
    for sent in world.sent.values():
        key = (sent.batch.producer_epoch, sent.batch.base_sequence)
        assert sent.code is not None, f"{sent} got no response"
        if sent.code is ErrorCode.NONE:
            assert key in stored, f"{sent} is not in the log"


step_lists: Any = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 5)), max_size=60)


@pytest.mark.parametrize("mode", [ADD, VERIFY])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=step_lists)
def test_a_transaction_is_never_torn_nor_left_open(
    mode: RegistrationMode, steps: list[tuple[str, int]]
) -> None:
    run(mode, steps)
