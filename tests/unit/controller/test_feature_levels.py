"""Feature levels: which processes must support a level before it is used, and which processes are refused."""

from __future__ import annotations

from typing import Any

import pytest

from odradek_metadata_quorum.controller import ControllerSettings, features, registration
from odradek_metadata_quorum.controller.features import REGISTRATION_MS_MAX
from odradek_metadata_quorum.controller.requests import Outcome, RegisterControllerRequest
from odradek_protocol.identity import (
    BrokerId,
    ControllerId,
    IncarnationId,
    MetadataIncarnationId,
    MetadataOffset,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import OWN_MAXIMA
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import FeatureLevel, NewerProgramNeeded
from odradek_protocol.metadata.snapshot import read_snapshot, snapshot_bytes
from tests.unit.controller.cluster import CLUSTER_ID, Cluster, cluster_with_topic

# What a program of metadata.version 1 wrote into a new cluster.
FIRST_LEVELS = (("group.version", 1), ("metadata.version", 1), ("transaction.version", 2))
VOTERS = tuple(map(ControllerId, (1, 2, 3)))


def upgraded_cluster(*, brokers: tuple[int, ...] = (1, 2, 3)) -> Cluster:
    """Return a cluster that an older program created, and whose brokers run the present program."""
    found = Cluster(
        settings=ControllerSettings(
            cluster_id=CLUSTER_ID, initial_features=FIRST_LEVELS, voters=VOTERS
        )
    )
    found.start(*brokers)
    return found


def raise_to(found: Cluster, level: int, name: str = "metadata.version", **more: Any) -> Outcome:
    return found.decide(features.update_feature, name, level, **more)


def register_controllers(
    found: Cluster, *nodes: int, levels: Any = OWN_MAXIMA, host_id: str | None = None
) -> None:
    for node in nodes:
        request = RegisterControllerRequest(
            controller_id=ControllerId(node),
            incarnation_id=IncarnationId(bytes([node]) * 16),
            features=levels,
            host_id=host_id,
        )
        outcome = found.decide(features.register_controller, request)
        assert outcome.is_good, outcome


def test_a_level_is_raised_when_everybody_supports_it() -> None:
    found = upgraded_cluster()
    register_controllers(found, *VOTERS)
    assert found.image.incarnation_id is None
    assert found.image.controllers == {}, "records of a later level"
    assert raise_to(found, 2).is_good
    assert found.image.features == {"group.version": 1, "metadata.version": 2}
    assert found.image.incarnation_id is not None
    register_controllers(found, *VOTERS)
    assert list(found.image.controllers) == list(VOTERS)
    batches = len(found.log)
    register_controllers(found, *VOTERS)
    assert len(found.log) == batches, "the same registration again is no record"
    assert read_snapshot(snapshot_bytes(found.image)) == found.image


def test_members_that_do_not_support_a_level_are_named() -> None:
    found = upgraded_cluster(brokers=(1,))
    found.register(2, features=(), feature_minima=())  # as an older program registers
    register_controllers(found, 1)
    register_controllers(found, 3, levels=(("metadata.version", 1),))
    outcome = raise_to(found, 2)
    assert outcome.error is ErrorCode.FEATURE_UPDATE_FAILED
    for member in (
        "controller 2 (it has not registered; a controller that runs a release with this feature registers within 2 s)",
        "controller 3 (up to 1)",
        "broker 2 (up to 1)",
    ):
        assert member in outcome.message
    for member in ("controller 1", "broker 1"):
        assert member not in outcome.message
    assert found.image.metadata_version == 1


def test_a_broker_that_is_fenced_or_gone_counts_until_it_is_unregistered() -> None:
    found = upgraded_cluster(brokers=(1,))
    register_controllers(found, *VOTERS)
    found.register(2, features=())
    assert "broker 2" in raise_to(found, 2).message
    assert found.decide(registration.unregister, 2).is_good  # type: ignore[arg-type]
    assert raise_to(found, 2).is_good


def test_a_feature_that_is_not_listed_is_not_supported() -> None:
    found = upgraded_cluster(brokers=())
    only_metadata = (("metadata.version", 2),)
    assert "group.version at level 1" in found.register(1, features=only_metadata).outcome.message
    register_controllers(found, *VOTERS)
    assert raise_to(found, 0, "group.version", allow_downgrade=True).is_good
    assert found.register(1, features=only_metadata).outcome.is_good
    assert "broker 1 (up to 0)" in raise_to(found, 1, "group.version").message


def test_a_level_is_not_lowered_below_what_a_member_still_supports() -> None:
    found = upgraded_cluster(brokers=(1,))
    register_controllers(found, *VOTERS)
    assert raise_to(found, 2).is_good
    minima = (("group.version", 1),)
    assert found.register(2, feature_minima=minima).outcome.is_good
    refused = raise_to(found, 0, "group.version", allow_downgrade=True)
    assert refused.message == "group.version 0 is no longer supported by broker 2 (from 1)"
    assert found.image.features["group.version"] == 1


WITHOUT_TRANSACTIONS = (("group.version", 1), ("metadata.version", 2))


def test_transactions_begin_when_every_broker_takes_part_in_them() -> None:
    found = upgraded_cluster(brokers=(1,))
    register_controllers(found, *VOTERS)
    assert raise_to(found, 2).is_good
    assert found.register(2, features=WITHOUT_TRANSACTIONS).outcome.is_good
    assert "broker 2 (up to 0)" in raise_to(found, 1, "transaction.version").message
    assert not found.image.has_transactions
    found.register(2)
    assert not found.image.has_transactions
    assert raise_to(found, 2, "transaction.version").is_good
    assert found.image.has_transactions
    refused = found.register(3, features=WITHOUT_TRANSACTIONS).outcome
    assert "transaction.version at level 2, but broker 3 supports 0 to 0" in refused.message
    assert found.image.has_transactions


def test_brokers_without_transactions_stay_away_while_there_is_state_of_transactions() -> None:
    """The level may be lowered while transactions are open, and their markers must still be
    written.
    """
    found = upgraded_cluster(brokers=(1,))
    register_controllers(found, *VOTERS)
    assert raise_to(found, 2).is_good
    found.create("__transaction_state")
    refused = found.register(2, features=WITHOUT_TRANSACTIONS).outcome
    assert refused.error is ErrorCode.UNSUPPORTED_VERSION
    assert "__transaction_state" in refused.message
    assert found.register(2).outcome.is_good


def test_a_voter_that_does_not_register_any_more_is_forgotten() -> None:
    """The controller may run an older program again, which does not register."""
    found = upgraded_cluster()
    register_controllers(found, *VOTERS)
    found.now_ms += REGISTRATION_MS_MAX + 1
    register_controllers(found, 1, 3)
    assert (
        "controller 2 (it has not registered; a controller that runs a release with this feature registers within 2 s)"
        in raise_to(found, 2).message
    )


def test_a_new_active_controller_asks_the_voters_again_below_the_level_of_their_records() -> None:
    found = upgraded_cluster()
    register_controllers(found, *VOTERS)
    found.fail_over()
    assert not raise_to(found, 2).is_good
    register_controllers(found, *VOTERS)
    assert raise_to(found, 2).is_good
    register_controllers(found, *VOTERS)
    found.fail_over()
    found.now_ms += REGISTRATION_MS_MAX + 1
    assert raise_to(found, 2).is_good, "the records say who supports it"


def test_who_is_no_voter_does_not_register() -> None:
    found = upgraded_cluster()
    request = RegisterControllerRequest(
        controller_id=ControllerId(4), incarnation_id=IncarnationId(bytes(16)), features=OWN_MAXIMA
    )
    outcome = found.decide(features.register_controller, request)
    assert outcome.error is ErrorCode.INVALID_REGISTRATION
    assert "not a voter" in outcome.message


def test_a_broker_of_an_older_program_is_taken_below_the_level_and_refused_above() -> None:
    found = upgraded_cluster(brokers=())
    old = {"features": (), "feature_minima": ()}
    assert found.register(1, **old).outcome.is_good, "a rolling upgrade may restart it"
    found.register(1)
    register_controllers(found, *VOTERS)
    assert raise_to(found, 2).is_good
    refused = found.register(2, **old).outcome
    assert refused.error is ErrorCode.UNSUPPORTED_VERSION
    assert (
        "metadata.version at level 2, but broker 2 supports 0 to 1: upgrade the broker"
        in refused.message
    )
    too_new = found.register(
        2,
        features=(("metadata.version", 9), ("group.version", 1)),
        feature_minima=(("metadata.version", 3),),
    ).outcome
    assert too_new.error is ErrorCode.UNSUPPORTED_VERSION
    assert "supports 3 to 9: raise the level of the feature first" in too_new.message


@pytest.mark.parametrize(
    ("name", "level", "downgrade", "message"),
    [
        ("metadata.version", 1, True, "cannot be lowered"),
        ("metadata.version", 2, True, "cannot be lowered"),
        ("metadata.version", 4, False, "has the levels 1 to 3"),
        ("transaction.version", 3, False, "has the levels 0 to 2"),
        ("group.version", 0, False, "allow the downgrade"),
        ("no.version", 1, False, "there is no feature"),
        ("metadata.version", 0, True, "has the levels 1 to 3"),
        ("metadata.version", 3, False, ""),
        ("group.version", 0, True, ""),
        ("transaction.version", 1, False, "allow the downgrade"),
        ("transaction.version", 0, True, ""),
        ("transaction.version", 2, False, ""),
    ],
)
def test_what_a_level_may_become(name: str, level: int, downgrade: bool, message: str) -> None:
    found = cluster_with_topic()
    assert found.image.metadata_version == 3
    before = dict(found.image.features)
    outcome = raise_to(found, level, name, allow_downgrade=downgrade)
    assert outcome.is_good is not bool(message)
    assert message in outcome.message
    assert found.image.feature_level(name) == (before.get(name, 0) if message else level)


def test_the_transaction_level_of_an_older_program_means_nothing() -> None:
    """The older program wrote level 2 into each new cluster, and had no transactions."""
    found = upgraded_cluster()
    assert found.image.features["transaction.version"] == 2
    assert found.image.feature_level("transaction.version") == 0
    register_controllers(found, *VOTERS)
    assert raise_to(found, 2).is_good
    assert "transaction.version" not in found.image.features


def test_a_level_above_the_programs_is_refused_at_replay() -> None:
    for level in (
        FeatureLevel(name="metadata.version", level=4),
        FeatureLevel(name="new", level=1),
    ):
        image = MetadataImage()
        with pytest.raises(NewerProgramNeeded, match="this program supports"):
            image.replay(MetadataOffset(1), 1, level)
    image = MetadataImage(features={"metadata.version": 2})
    with pytest.raises(NewerProgramNeeded, match=r"transaction\.version 3"):
        image.replay(MetadataOffset(1), 1, FeatureLevel(name="transaction.version", level=3))


def test_hosts_are_recorded_from_their_level_on() -> None:
    found = upgraded_cluster(brokers=())
    register_controllers(found, *VOTERS)
    assert raise_to(found, 2).is_good
    found.register(1, host_id="h1")
    assert found.image.brokers[BrokerId(1)].host_id is None, "a field of a later level"
    assert raise_to(found, 3).is_good
    found.register(1, host_id="h1")
    found.register(2)
    register_controllers(found, *VOTERS, host_id="h1")
    assert found.image.brokers[BrokerId(1)].host_id == "h1"
    assert found.image.brokers[BrokerId(2)].host_id is None, "a program that names none"
    assert {controller.host_id for controller in found.image.controllers.values()} == {"h1"}
    assert read_snapshot(snapshot_bytes(found.image)) == found.image


def test_a_new_log_has_an_incarnation_of_its_own_from_its_first_batch_on() -> None:
    first, second = Cluster(seed=1), Cluster(seed=2)
    assert first.log[0][2], "the first batch"
    ids = {first.image.incarnation_id, second.image.incarnation_id}
    assert len(ids) == 2
    assert None not in ids
    before = first.image.incarnation_id
    first.fail_over()
    assert first.image.incarnation_id == before


def test_a_broker_of_another_metadata_log_is_refused_with_the_ways_out() -> None:
    found = cluster_with_topic()
    other = MetadataIncarnationId(b"o" * 16)
    assert found.image.incarnation_id is not None
    assert found.register(4, metadata_incarnation_id=found.image.incarnation_id).outcome.is_good
    refused = found.register(5, metadata_incarnation_id=other).outcome
    assert refused.error is ErrorCode.INCONSISTENT_CLUSTER_ID
    for part in (other.hex(), found.image.incarnation_id.hex(), "Restore", "odradek storage adopt"):
        assert part in refused.message
    assert "empty" not in refused.message
    assert 5 not in found.image.brokers


def test_a_log_without_incarnation_is_refused_by_a_broker_that_followed_one() -> None:
    """Such a log is of an older program, which cannot follow a newer one."""
    found = upgraded_cluster(brokers=())
    refused = found.register(1, metadata_incarnation_id=MetadataIncarnationId(b"o" * 16)).outcome
    assert refused.error is ErrorCode.INCONSISTENT_CLUSTER_ID


def test_a_broker_that_names_controllers_which_do_not_vote_here_is_refused() -> None:
    """A single controller that was formatted with wrong voters forms a quorum of its own."""
    found = Cluster(settings=ControllerSettings(cluster_id=CLUSTER_ID, voters=(ControllerId(3),)))
    refused = found.register(1, controller_ids=frozenset(VOTERS)).outcome
    assert refused.error is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert "names the controllers 1, 2" in refused.message
    assert "the voters are 3" in refused.message
    assert found.register(1, controller_ids=frozenset(VOTERS[2:])).outcome.is_good
