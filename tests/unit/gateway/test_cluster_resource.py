"""The v3 resource of the cluster, whose controller is a link to a broker."""

from __future__ import annotations

import pytest
from fastapi import Request

from odradek.admin.descriptions import BrokerDescription, ClusterDescription
from odradek_gateway.rest.v3.clusters import cluster_resource
from odradek_gateway.rest.v3.resources import Names

URL = "http://gateway/v3/clusters/c"


def cluster(brokers: dict[int, bool]) -> ClusterDescription:
    """Return a cluster of these brokers, of which some are fenced. Its active controller has the id 901."""
    return ClusterDescription(
        cluster_id="c",
        active_controller_id=901,
        controller_epoch=1,
        controller_endpoints=(),
        brokers=tuple(
            BrokerDescription(
                broker_id=broker_id,
                broker_epoch=1,
                listeners=(),
                rack="",
                is_fenced=is_fenced,
                is_in_shutdown=False,
                leader_count=0,
            )
            for broker_id, is_fenced in brokers.items()
        ),
    )


@pytest.mark.parametrize(
    ("brokers", "controller"),
    [
        ({1: True, 2: False, 3: False}, {"related": f"{URL}/brokers/2"}),
        ({0: False, 1: False}, {"related": f"{URL}/brokers/0"}),
        ({1: True}, None),
        ({}, None),
    ],
)
def test_the_controller_is_a_live_broker(
    brokers: dict[int, bool], controller: dict[str, str] | None
) -> None:
    request = Request(
        {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "server": ("gateway", 80),
            "path": "/v3/clusters/c",
            "root_path": "",
            "query_string": b"",
            "headers": [],
        }
    )
    resource = cluster_resource(Names(request, "c"), cluster(brokers))
    assert resource["controller"] == controller
