"""Filters of access control entries, as describing and deleting have them."""

from __future__ import annotations

from typing import Any

from odradek_protocol.access import PatternType
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb


def filter_of(one: Any) -> pb.AclEntry:
    """The wire's filter as the controller takes it: null is any, told by an empty text."""
    return pb.AclEntry(
        resource_type=one.resource_type_filter,
        resource_name=one.resource_name_filter or "",
        pattern_type=one.pattern_type_filter or PatternType.LITERAL,
        principal=one.principal_filter or "",
        host=one.host_filter or "",
        operation=one.operation,
        permission_type=one.permission_type,
    )


def is_understood(one: Any) -> bool:
    """Whether nothing in a filter is unknown: such a filter must match nothing by accident."""
    return bool(
        one.resource_type_filter > 0
        and one.pattern_type_filter > 0
        and one.operation > 0
        and one.permission_type > 0
    )
