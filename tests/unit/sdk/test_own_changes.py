"""A client reads its own changes of the metadata, whichever broker responds."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.admin.admin import Admin
from odradek.cluster import cluster as cluster_module
from odradek.cluster.cluster import Cluster
from odradek.cluster.methods import METADATA
from odradek.errors import BrokerUnreachable, NoActiveController
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin_pb
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb


class Brokers:
    """A transport to two brokers, whose metadata are at the offsets that the test sets."""

    def __init__(self, first: int, second: int) -> None:
        self.offsets = {"first:1": first, "second:1": second}
        self.asked: list[tuple[str, int]] = []

    async def call(self, endpoint: str, method: Any, request: Any, *, timeout_s: float) -> Any:
        if method.name == "DeleteTopics":
            return admin_pb.DeleteTopicsResponse(
                topics=[admin_pb.TopicResult(name=name) for name in request.names],
                metadata_offset=12,
            )
        self.asked.append((endpoint, request.min_metadata_offset))
        return pb.MetadataResponse(metadata_offset=self.offsets[endpoint])

    def open(self, endpoint: str, method: Any) -> Any:
        raise AssertionError("nothing is watched")

    async def close(self) -> None: ...


async def admin_of(brokers: Brokers) -> Admin:
    cluster = Cluster(["first:1", "second:1"], brokers)  # type: ignore[arg-type]
    cluster._rotation = 1  # the next call goes to the first broker
    return Admin(cluster=cluster)


async def test_a_broker_that_is_behind_is_passed_over_for_one_that_has_the_change() -> None:
    brokers = Brokers(first=11, second=12)
    admin = await admin_of(brokers)
    await admin.list_topics()
    assert [required for _, required in brokers.asked] == [0], "nothing was changed yet"
    await admin.delete_topic("t")
    brokers.asked.clear()
    for _ in range(2):
        await admin.list_topics()
    assert {required for _, required in brokers.asked} == {12}
    assert [endpoint for endpoint, _ in brokers.asked].count("second:1") == 2


async def test_a_change_that_no_broker_will_ever_have_is_required_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cluster was replaced by a new one: its metadata offsets begin again, below the one that
    the client has seen.
    """
    monkeypatch.setattr(cluster_module, "OWN_CHANGES_S_MAX", 0.0)
    brokers = Brokers(first=1, second=1)
    admin = await admin_of(brokers)
    await admin.delete_topic("t")
    for _ in range(2):
        await admin.list_topics()
    assert [required for _, required in brokers.asked] == [12, 0]


class WithoutController(Brokers):
    """Two brokers: the first has no active controller, the second does not run."""

    async def call(self, endpoint: str, method: Any, request: Any, *, timeout_s: float) -> Any:
        if endpoint == "first:1":
            raise NoActiveController("no active controller")
        raise BrokerUnreachable(endpoint, "Connection refused")


async def test_a_broker_that_is_down_does_not_hide_that_there_is_no_controller() -> None:
    cluster = Cluster(["first:1", "second:1"], WithoutController(1, 1))  # type: ignore[arg-type]
    with pytest.raises(NoActiveController):
        await cluster.call_any(METADATA, pb.MetadataRequest(), timeout_s=0.3)
