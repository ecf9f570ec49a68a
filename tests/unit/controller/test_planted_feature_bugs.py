"""Planted bugs: a patch disables one rule of features, identity or placement, and the test named
for that rule must then fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from odradek_metadata_quorum.controller import (
    controller,
    features,
    partitions,
    placement,
    registration,
    topics,
)
from odradek_protocol.metadata import codec, image
from odradek_protocol.metadata.features import OWN_MAXIMA
from odradek_protocol.metadata.records import MetadataIncarnation
from odradek_runtime import cluster_identity
from tests.unit.controller import test_alter_partition, test_feature_levels, test_placement
from tests.unit.protocol import test_codec
from tests.unit.replication import test_cluster_identity

Patch = Callable[[pytest.MonkeyPatch], None]


def missing_features_count_as_supported(patch: pytest.MonkeyPatch) -> None:
    for module in (features, registration):
        patch.setattr(module, "highest_supported", lambda levels, name: dict(levels).get(name, 99))


def voters_are_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(features, "registered_features", lambda *_, **__: OWN_MAXIMA)


def registrations_of_voters_never_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(features, "REGISTRATION_MS_MAX", 1 << 40)


def records_are_written_in_their_newest_version(patch: pytest.MonkeyPatch) -> None:
    rows = codec._rows
    patch.setattr(codec, "_rows", lambda records, _level: rows(records, 99))


def unknown_fields_are_ignored(patch: pytest.MonkeyPatch) -> None:
    record = codec._record

    def read_known(row: Any) -> Any:
        layout = codec._BY_TYPE_ID.get(row[0])
        return record(row if layout is None else row[: layout.length_max])

    patch.setattr(codec, "_record", read_known)


def levels_are_replayed_unseen(patch: pytest.MonkeyPatch) -> None:
    class Anything(dict[str, tuple[int, int]]):
        def get(self, *_: Any) -> tuple[int, int]:
            return 0, 99

    patch.setattr(image, "SUPPORTED_FEATURES", Anything())


def all_logs_have_one_incarnation(patch: pytest.MonkeyPatch) -> None:
    same = MetadataIncarnation(incarnation_id=bytes(16))  # type: ignore[arg-type]
    patch.setattr(controller, "new_incarnation", lambda _draws: same)


def the_state_of_transactions_binds_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(registration, "TRANSACTIONS_TOPIC", "another topic")


def brokers_are_not_asked_for_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(features, "_unable", lambda *_: [])


def a_log_that_was_not_read_is_taken_for_the_callers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(test_cluster_identity, "must_wait", lambda *_, **__: False)


def other_voters_are_no_strangers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster_identity, "_ids", lambda _: set())


def every_broker_is_a_host_of_its_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(placement.Candidate, "host_key", property(lambda self: self.broker_id))


def partial_laps_go_round_the_ring(patch: pytest.MonkeyPatch) -> None:
    class Uncounted(Counter[int]):
        def __getitem__(self, _: int) -> int:
            return 0

    patch.setattr(topics, "Counter", Uncounted)


def a_move_completes_when_what_it_adds_is_in_sync(patch: pytest.MonkeyPatch) -> None:
    def is_complete(_work: Any, _state: Any, moving: Any) -> bool:
        return {*moving.adding} <= {*moving.isr} and bool({*moving.isr} - {*moving.removing})

    patch.setattr(partitions, "_is_complete", is_complete)


def a_move_is_cancelled_while_one_candidate_is_left(patch: pytest.MonkeyPatch) -> None:
    def keep(state: Any, replicas: Any) -> bool:
        return not {*state.isr, *state.elr}.isdisjoint(replicas)

    patch.setattr(partitions, "keep_all_records", keep)


def a_stranger_of_other_voters() -> None:
    case = next(
        case
        for mark in test_cluster_identity.test_who_is_a_stranger.pytestmark  # type: ignore[attr-defined]
        for case in mark.args[1]
        if case.id == "other voters"
    )
    test_cluster_identity.test_who_is_a_stranger(*case.values)


def an_appended_field() -> None:
    for mark in (
        test_codec.test_what_only_a_newer_program_knows_is_refused_and_not_called_damage.pytestmark
    ):  # type: ignore[attr-defined]
        for case in mark.args[1]:
            test_codec.test_what_only_a_newer_program_knows_is_refused_and_not_called_damage(
                *case.values
            )


BUGS: list[tuple[Patch, Callable[[], None]]] = [
    (
        missing_features_count_as_supported,
        test_feature_levels.test_members_that_do_not_support_a_level_are_named,
    ),
    (
        missing_features_count_as_supported,
        test_feature_levels.test_a_feature_that_is_not_listed_is_not_supported,
    ),
    (
        voters_are_not_asked,
        test_feature_levels.test_members_that_do_not_support_a_level_are_named,
    ),
    (
        registrations_of_voters_never_end,
        test_feature_levels.test_a_voter_that_does_not_register_any_more_is_forgotten,
    ),
    (
        records_are_written_in_their_newest_version,
        test_codec.test_what_a_level_does_not_allow_is_not_written,
    ),
    (unknown_fields_are_ignored, an_appended_field),
    (
        levels_are_replayed_unseen,
        test_feature_levels.test_a_level_above_the_programs_is_refused_at_replay,
    ),
    (
        all_logs_have_one_incarnation,
        test_feature_levels.test_a_new_log_has_an_incarnation_of_its_own_from_its_first_batch_on,
    ),
    (
        a_log_that_was_not_read_is_taken_for_the_callers,
        test_cluster_identity.test_a_controller_that_has_read_of_no_incarnation_cannot_judge_who_follows_one,
    ),
    (
        the_state_of_transactions_binds_nobody,
        test_feature_levels.test_brokers_without_transactions_stay_away_while_there_is_state_of_transactions,
    ),
    (
        brokers_are_not_asked_for_transactions,
        test_feature_levels.test_transactions_begin_when_every_broker_takes_part_in_them,
    ),
    (other_voters_are_no_strangers, a_stranger_of_other_voters),
    (
        every_broker_is_a_host_of_its_own,
        test_placement.test_a_live_broker_of_a_used_host_does_not_replace_another_host,
    ),
    (
        partial_laps_go_round_the_ring,
        test_placement.test_leaders_are_even_again_after_topics_were_created_in_the_place_of_deleted_ones,
    ),
    (
        a_move_completes_when_what_it_adds_is_in_sync,
        test_alter_partition.test_a_move_waits_until_enough_of_its_final_replicas_are_in_sync,
    ),
    (
        a_move_is_cancelled_while_one_candidate_is_left,
        test_alter_partition.test_no_copy_is_dropped_while_the_longest_log_is_looked_for,
    ),
]


@pytest.mark.parametrize(
    ("plant", "named_test"),
    BUGS,
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_a_planted_bug_is_found(plant: Patch, named_test: Callable[[], None]) -> None:
    named_test()
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            named_test()
