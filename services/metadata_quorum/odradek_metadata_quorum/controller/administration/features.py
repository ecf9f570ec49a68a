"""Feature levels: what all members may do, so that old and new versions run together (KIP-584)."""

from __future__ import annotations

from typing import Final

from odradek_metadata_quorum.controller.decision import GOOD, Outcome
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import FeatureLevel

SUPPORTED: Final[dict[str, tuple[int, int]]] = {  # lowest and highest level of this version
    "group.version": (0, 1),
    "metadata.version": (1, 1),
    "transaction.version": (0, 2),
}


def update_feature(work: Workspace, name: str, level: int, *, allow_downgrade: bool) -> Outcome:
    """Set a feature's level if this controller and every registered broker know it."""
    if name not in SUPPORTED:
        return _failed(f"there is no feature {name}; there are {', '.join(SUPPORTED)}")
    lowest, highest = SUPPORTED[name]
    if not lowest <= level <= highest:
        return _failed(f"{name} has the levels {lowest} to {highest}, not {level}")
    present = work.image.features.get(name, 0)
    if level < present and not allow_downgrade:
        return _failed(f"{name} is at level {present}; allow the downgrade to lower it to {level}")
    for broker in work.image.brokers.values():
        known = dict(broker.features).get(name, highest)
        if level > known:
            return _failed(f"broker {broker.broker_id} knows {name} to level {known} only")
    if level != present:
        work.write(FeatureLevel(name=name, level=level))
    return GOOD


def _failed(message: str) -> Outcome:
    return Outcome(error=ErrorCode.FEATURE_UPDATE_FAILED, message=message)
