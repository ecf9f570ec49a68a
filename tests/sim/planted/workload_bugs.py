"""Planted bugs that only seeds with certain clients or faults can find (`Extra` in simulation.py)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from odradek_broker.cluster.catch_up import CatchUp
from odradek_broker.cluster.producer_ids import ProducerIdSource
from odradek_broker.log import compaction
from odradek_broker.log.directory import loading
from odradek_broker.log.storage import DirectoryHealth
from odradek_broker.replication import produce_check
from odradek_broker.replication.disk.stray_logs import StrayLogs
from odradek_broker.replication.local_partitions import FetchWaiter
from odradek_broker.replication.partition import Partition
from tests.sim.planted.bug import Bug, Plant, replace_in
from tests.sim.simulation import Extra, seeds_with


def _waiting_fetch_not_woken(stack: ExitStack) -> None:
    replace_in(stack, FetchWaiter, "on_partition_moved", lambda self, host: None)


def _record_without_key_taken(stack: ExitStack) -> None:
    replace_in(stack, produce_check, "check_keys", lambda buffer, batches, bytes_max: None)


def _all_keys_are_one(stack: ExitStack) -> None:
    replace_in(stack, compaction, "_short", lambda key: b"")


def _producer_id_given_twice(stack: ExitStack) -> None:
    def take(self: ProducerIdSource, count: int) -> list[Any]:
        return list(self._blocks[0][:count])

    replace_in(stack, ProducerIdSource, "take", take)


def _full_disk_stays_full(stack: ExitStack) -> None:
    replace_in(stack, DirectoryHealth, "has_room_again", lambda self: None)


def _damage_mark_not_read(stack: ExitStack) -> None:
    replace_in(stack, loading, "DAMAGED", "unmarked")


def _stray_never_comes_back(stack: ExitStack) -> None:
    replace_in(stack, StrayLogs, "bring_back", lambda self, stray, topic, config, on_done: None)


def _ready_before_it_caught_up(stack: ExitStack) -> None:
    replace_in(stack, CatchUp, "why_not", lambda self, image, connected, now_ms: "")


def _ready_before_others_reach_it(stack: ExitStack) -> None:
    original = CatchUp.why_not

    def why_not(self: CatchUp, image: Any, connected: Any, now_ms: int) -> str:
        return original(self, image, image.brokers, now_ms)

    replace_in(stack, CatchUp, "why_not", why_not)


def _coordinator_reads_damage(stack: ExitStack) -> None:
    original = Partition.read

    def read(self: Partition, offset: Any, *, verify: bool = False, **named: Any) -> Any:
        return original(self, offset, **named)

    replace_in(stack, Partition, "read", read)


def _bug(number: int, name: str, plant: Plant, extra: Extra, found_by: int | None = None) -> Bug:
    """Return a bug that only seeds with this extra client or fault can find."""
    seeds = seeds_with(extra, below=400)
    return Bug(number=number, name=name, plant=plant, seeds=seeds, found_by=found_by)


WORKLOAD_BUGS = (
    _bug(110, "a waiting fetch is not woken", _waiting_fetch_not_woken, Extra.READERS),
    _bug(
        112, "a record without a key in a compacted topic", _record_without_key_taken, Extra.BATCHES
    ),
    _bug(113, "compaction treats all keys as one", _all_keys_are_one, Extra.BATCHES),
    _bug(114, "a producer id is assigned twice", _producer_id_given_twice, Extra.BATCHES),
    _bug(116, "a disk with free space again stays full", _full_disk_stays_full, Extra.FULL_DISKS),
    _bug(117, "the mark of a damaged log is not read", _damage_mark_not_read, Extra.DAMAGE, 40),
    _bug(118, "a stray log is never restored", _stray_never_comes_back, Extra.DAMAGE, 26),
    _bug(119, "ready before it has caught up", _ready_before_it_caught_up, Extra.ROLL),
    _bug(
        120,
        "a coordinator loads without checking CRCs",
        _coordinator_reads_damage,
        Extra.DAMAGE,
        138,
    ),
    _bug(122, "ready before others reach it", _ready_before_others_reach_it, Extra.ROLL),
)
