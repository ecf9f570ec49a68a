"""Planted bugs: a patch disables one rule of the coordinator's runtime, and the test named for that
rule must then fail.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from odradek_broker.coordination.connection_order import ConnectionOrder
from odradek_broker.coordination.hosted_shard import HostedShard, Order
from odradek_broker.coordination.marker_sender import MarkerSender
from odradek_protocol.identity import NO_BROKER
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.transactions import test_marker_sender, test_transaction_coordinator

pytestmark = pytest.mark.interpreted

Patch = Callable[[pytest.MonkeyPatch], None]


def late_end_ends_the_next_transaction(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 13: requests of connections that their clients have abandoned are still decided."""
    patch.setattr(ConnectionOrder, "is_outdated", lambda *_: False)


def markers_leave_before_the_decision_is_committed(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 40: responses and markers are sent before the decision is committed."""
    take = HostedShard.take

    def take_and_release(self: HostedShard[Any], step: Any) -> None:
        self._release([*step.responses, *map(Order, step.orders)])
        take(self, step)

    patch.setattr(HostedShard, "take", take_and_release)


def partition_without_leader_is_skipped(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 46: a partition without a leader is treated as deleted."""
    send = MarkerSender._send

    def send_or_skip(self: MarkerSender, due: Any) -> None:
        state = self._partitions.image.partition(due.partition.topic_id, due.partition.partition)
        if state is not None and state.leader == NO_BROKER:
            self._settle(due, ErrorCode.UNKNOWN_TOPIC_ID)
        else:
            send(self, due)

    patch.setattr(MarkerSender, "_send", send_or_skip)


def acknowledgements_are_matched_by_their_decision_alone(patch: pytest.MonkeyPatch) -> None:
    """Planted bug 47: an acknowledgement from an earlier leadership of the coordinator, whose
    decisions have the same numbers, counts.
    """
    responded = MarkerSender._responded

    def respond_to_any(self: MarkerSender, due: Any, attempt: int, code: ErrorCode) -> None:
        for present in self._due.get(due.shard, {}):
            if (present.decision, present.partition) == (due.decision, due.partition):
                due = present
                break
        responded(self, due, attempt, code)

    patch.setattr(MarkerSender, "_responded", respond_to_any)


async def on_coordinator(test: Callable[[Any], Awaitable[None]]) -> None:
    async with test_transaction_coordinator.coordinating() as world:
        await test(world)


async def on_sender(test: Callable[[Any], Awaitable[None]]) -> None:
    async with test_marker_sender.sending() as world:
        await test(world)


BUGS = [
    (
        on_coordinator,
        late_end_ends_the_next_transaction,
        test_transaction_coordinator.test_end_on_a_connection_given_up,
    ),
    (
        on_coordinator,
        markers_leave_before_the_decision_is_committed,
        test_transaction_coordinator.test_coordinator_dies_with_an_unreplicated_decision,
    ),
    (
        on_sender,
        partition_without_leader_is_skipped,
        test_marker_sender.test_registered_partition_without_a_leader,
    ),
    (
        on_sender,
        acknowledgements_are_matched_by_their_decision_alone,
        test_marker_sender.test_late_acknowledgement_of_a_marker,
    ),
]


@pytest.mark.parametrize(
    ("run", "plant", "named_test"), BUGS, ids=lambda part: getattr(part, "__name__", "")
)
async def test_a_planted_bug_is_found(run: Any, plant: Patch, named_test: Any) -> None:
    await run(named_test)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception, ValueError)):
            await run(named_test)
