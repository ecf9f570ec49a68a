"""Makes access control entries that allow one principal exactly certain rights."""

from __future__ import annotations

from collections.abc import Iterable

from odradek_protocol.access import Operation, PatternType, Permission, ResourceType
from odradek_protocol.metadata.records import AccessControlEntry

Right = tuple[Operation, ResourceType, str]


def entries_for(principal: str, rights: Iterable[Right]) -> dict[bytes, AccessControlEntry]:
    """Return access control entries by their ids, as the metadata have them."""
    return {
        bytes([number]) * 16: AccessControlEntry(
            acl_id=bytes([number]) * 16,
            resource_type=kind,
            resource_name=name,
            pattern_type=PatternType.LITERAL,
            principal=principal,
            host="*",
            operation=operation,
            permission_type=Permission.ALLOW,
        )
        for number, (operation, kind, name) in enumerate(rights)
    }
