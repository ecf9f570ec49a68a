"""Every gRPC method that clients may call is checked: by the table, or by its servicer."""

from __future__ import annotations

import pytest

from odradek_broker.security.grpc_rights import CHECKED_BY_SERVICERS, RULES
from odradek_protocol.rpc.v1 import admin_service_pb2, broker_service_pb2, group_service_pb2

SERVICES = [
    module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (broker_service_pb2, "BrokerService"),
        (admin_service_pb2, "AdminService"),
        (group_service_pb2, "GroupService"),
    )
]
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for service in SERVICES
    for method in service.methods
}


def test_no_method_is_unguarded() -> None:
    assert set(METHODS) == set(RULES) | CHECKED_BY_SERVICERS


@pytest.mark.parametrize("method", sorted(RULES))
def test_a_rule_reads_its_own_request(method: str) -> None:
    """A rule that names a field that is not there fails here, not at the first call."""
    request_type = METHODS[method].input_type._concrete_class
    request = request_type()
    for field in request.DESCRIPTOR.fields:
        if (
            field.is_repeated
            and field.message_type is not None
            and not field.message_type.GetOptions().map_entry
        ):
            getattr(request, field.name).add()
        elif field.is_repeated and field.name == "group_ids":
            getattr(request, field.name).append("g")
        elif field.is_repeated and field.name == "names":
            getattr(request, field.name).append("t")
    needs = list(RULES[method](request))
    assert all(need for need in needs)
    assert needs or method.endswith("DeleteTopics")


@pytest.mark.parametrize("method", sorted(RULES))
def test_only_unary_methods_are_in_the_table(method: str) -> None:
    descriptor = METHODS[method]
    assert not getattr(descriptor, "client_streaming", False)
    assert not getattr(descriptor, "server_streaming", False)
