"""Quotas and producer ids: which requests the controller accepts, and which it refuses and why."""

from __future__ import annotations

from typing import Any

from odradek_metadata_quorum.controller import access, producer_ids
from odradek_metadata_quorum.controller.access import QuotaAlteration
from odradek_metadata_quorum.controller.requests import AllocateProducerIdsRequest
from odradek_protocol.identity import BrokerEpoch, BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import ConfigResourceType
from tests.unit.controller.cluster import Cluster, cluster_with_topic

BROKER = ConfigResourceType.BROKER


# --- quotas


def test_quotas_are_set_and_removed() -> None:
    found = cluster_with_topic()
    entity = (("user", "alice"), ("client-id", None))

    def alter_quota(value: float | None, **more: Any) -> Any:
        alteration = QuotaAlteration(
            **{"entity": entity, "key": "producer_byte_rate", "value": value, **more}
        )
        (outcome,) = found.decide(access.alter_quotas, (alteration,))
        return outcome

    assert alter_quota(1024.0).is_good
    assert found.image.quotas == {tuple(sorted(entity)): {"producer_byte_rate": 1024.0}}
    assert alter_quota(None).is_good
    assert found.image.quotas == {}
    for wrong in (
        {"value": 0.0},
        {"value": float("nan")},
        {"value": 1.0, "key": "beer_rate"},
        {"value": 1.0, "entity": ()},
        {"value": 1.0, "entity": (("user", "a"), ("user", "b"))},
        {"value": 1.0, "entity": (("user", "a"), ("ip", "1"))},
        {"value": 1.0, "entity": (("ip", "1"),)},
    ):
        assert alter_quota(**wrong).error is ErrorCode.INVALID_REQUEST  # type: ignore[arg-type]
    assert found.image.quotas == {}


# --- what a first start sets, and producer ids


def test_a_clusters_first_start_sets_features_and_configs_once() -> None:
    from odradek_metadata_quorum.controller import ControllerSettings

    found = Cluster(
        settings=ControllerSettings(
            cluster_id="test-cluster", initial_configs=(("min.insync.replicas", "2"),)
        )
    )
    assert found.image.features == {
        "group.version": 1,
        "metadata.version": 3,
        "transaction.version": 2,
    }
    assert found.image.config_of(BROKER, "") == {"min.insync.replicas": "2"}
    found.set_config("min.insync.replicas", "1")
    found.fail_over()
    assert found.image.config_of(BROKER, "") == {"min.insync.replicas": "1"}


def test_producer_ids_are_given_out_once_also_across_controllers() -> None:
    found = cluster_with_topic()
    seen: set[int] = set()
    for turn in range(6):
        broker = turn % 3 + 1
        block = found.decide(
            producer_ids.allocate_producer_ids,
            AllocateProducerIdsRequest(
                broker_id=BrokerId(broker), broker_epoch=found.epochs[broker]
            ),
        )
        ids = set(range(block.producer_id_start, block.producer_id_start + block.producer_id_count))
        assert len(ids) == 1000
        assert not ids & seen
        seen |= ids
        if turn == 2:
            found.fail_over()
    stale = AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(0))
    refused = found.decide(producer_ids.allocate_producer_ids, stale)
    assert refused.error is ErrorCode.STALE_BROKER_EPOCH
