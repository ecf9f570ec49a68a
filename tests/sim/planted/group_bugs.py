"""Planted bugs of the group coordinator."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from odradek_broker.coordination.coordinator_host import CoordinatorHost
from odradek_broker.coordination.group_coordinator import GroupKind
from odradek_broker.coordination.hosted_shard import CoordinatorError, HostedShard
from odradek_broker.groups.classic_group import ClassicGroup
from odradek_broker.groups.consumer_group import ConsumerGroup
from odradek_broker.replication.partition import Partition
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.sim.planted.bug import Bug, replace_in

_OLD = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
)


def _commit_of_an_old_generation(stack: ExitStack) -> None:
    for kind, name in ((ClassicGroup, "check_commit"), (ConsumerGroup, "check_epoch")):
        original = getattr(kind, name)

        def check(self: Any, *args: Any, original: Any = original, **kwargs: Any) -> ErrorCode:
            error: ErrorCode = original(self, *args, **kwargs)
            return ErrorCode.NONE if error in _OLD else error

        replace_in(stack, kind, name, check)


def _state_lost_at_a_move(stack: ExitStack) -> None:
    replace_in(stack, GroupKind, "replay", lambda self, shard, record: None)


def _answers_without_lease(stack: ExitStack) -> None:
    async def ask(self: CoordinatorHost[Any], partition: Any, decide: Any) -> Any:
        hosted = self._hosted.get(partition)
        if hosted is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        return await hosted.ask(decide)

    def ask_soon(self: CoordinatorHost[Any], partition: Any, decide: Any, shape: Any) -> Any:
        hosted = self._hosted.get(partition)
        if hosted is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        return hosted.ask(decide, shape)

    replace_in(stack, CoordinatorHost, "ask", ask)
    replace_in(stack, CoordinatorHost, "ask_soon", ask_soon)


def _answers_before_replication(stack: ExitStack) -> None:
    original = HostedShard.take

    def take(self: HostedShard[Any], step: Any) -> None:
        self._release(step.responses)
        original(self, step)

    replace_in(stack, HostedShard, "take", take)


def _loads_what_is_committed(stack: ExitStack) -> None:
    replace_in(stack, Partition, "log_end", 0)


GROUP_BUGS = (
    Bug(
        number=14,
        name="offset commit accepted from an old generation",
        plant=_commit_of_an_old_generation,
        found_by=1,
    ),
    Bug(number=20, name="group state lost at coordinator move", plant=_state_lost_at_a_move),
    Bug(
        number=32,
        name="coordinator answers past its lease",
        plant=_answers_without_lease,
        is_rare=True,
    ),
    Bug(
        number=33,
        name="coordinator answers before replication",
        plant=_answers_before_replication,
        found_by=3,
    ),
    Bug(
        number=34,
        name="coordinator reloads without its own last writes",
        plant=_loads_what_is_committed,
    ),
)
