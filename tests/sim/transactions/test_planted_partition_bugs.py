"""Rules of the partition side of transactions, taken out one at a time: the seeds notice each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.producer_state import ProducerStates
from odradek_broker.partition.transaction_gate import TransactionGate
from tests.sim.transactions.transactions_run import run_seed

SEEDS_MAX = 6
Patch = Callable[[pytest.MonkeyPatch], None]


def last_stable_offset_is_the_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))


def no_verification(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionGate, "_must_register", lambda gate, batch: False)


def unreplicated_markers_forgotten(patch: pytest.MonkeyPatch) -> None:
    note = ProducerStates.note_marker

    def forget(self: ProducerStates, *args: Any, **kwargs: Any) -> Any:
        aborted = note(self, *args, **kwargs)
        self._unreplicated.clear()
        return aborted

    patch.setattr(ProducerStates, "note_marker", forget)


def transaction_index_forgotten(patch: pytest.MonkeyPatch) -> None:
    note = ProducerStates.note_marker

    def forget(self: ProducerStates, *args: Any, **kwargs: Any) -> None:
        note(self, *args, **kwargs)

    patch.setattr(ProducerStates, "note_marker", forget)


PLANTED: list[tuple[str, Patch]] = [
    ("11", last_stable_offset_is_the_watermark),
    ("41", no_verification),
    ("48", unreplicated_markers_forgotten),
    ("T12", transaction_index_forgotten),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "bug", [bug for _, bug in PLANTED], ids=[f"{name}-{bug.__name__}" for name, bug in PLANTED]
)
def test_the_seeds_notice_a_rule_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, bug: Patch
) -> None:
    bug(monkeypatch)
    assert any(run_seed(seed).violations for seed in range(SEEDS_MAX))
