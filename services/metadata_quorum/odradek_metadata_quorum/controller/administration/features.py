"""Changes of feature levels, so that old and new programs run together (KIP-584).

A level is raised when every registered broker and every voter supports it, fenced brokers too: they
come back. `metadata.version` is never lowered, because the records of its levels are in the log.
"""

from __future__ import annotations

from dataclasses import dataclass

from odradek_metadata_quorum.controller.controllers import registered_features
from odradek_metadata_quorum.controller.decision import GOOD, Draws, Outcome
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import MetadataIncarnationId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import (
    METADATA_VERSION,
    METADATA_VERSION_WITH_IDENTITY,
    SUPPORTED_FEATURES,
    TRANSACTION_VERSION,
    highest_supported,
)
from odradek_protocol.metadata.records import FeatureLevel, MetadataIncarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """One feature: the level in use, this program's range, and what the members agree on."""

    name: str
    level: int
    level_min: int
    level_max: int
    level_common: int  # the highest that every member supports
    held_back_by: tuple[str, ...]  # members below level_max, for people


def describe_features(work: Workspace) -> tuple[FeatureDescription, ...]:
    """All features of this program, by name."""
    described = []
    for name, (lowest, highest) in sorted(SUPPORTED_FEATURES.items()):
        common = highest
        while common > lowest and _unable(work, name, common):
            common -= 1
        described.append(
            FeatureDescription(
                name=name,
                level=work.image.feature_level(name),
                level_min=lowest,
                level_max=highest,
                level_common=common,
                held_back_by=tuple(_unable(work, name, highest)) if highest else (),
            )
        )
    return tuple(described)


def update_feature(
    work: Workspace,
    name: str,
    level: int,
    *,
    allow_downgrade: bool = False,
) -> Outcome:
    """Set a feature's level if every registered broker and every voter supports it."""
    if name not in SUPPORTED_FEATURES:
        return _failed(f"there is no feature {name}; there are {', '.join(SUPPORTED_FEATURES)}")
    lowest, highest = SUPPORTED_FEATURES[name]
    if not lowest <= level <= highest:
        return _failed(f"{name} has the levels {lowest} to {highest}, not {level}")
    present = work.image.feature_level(name)
    if level < present and name == METADATA_VERSION:
        return _failed(
            f"{name} is at level {present} and cannot be lowered to {level}: the metadata log has"
            f" records of level {present}, which older programs cannot read"
        )
    if level < present and not allow_downgrade:
        return _failed(f"{name} is at level {present}; allow the downgrade to lower it to {level}")
    if level > present and (unable := _unable(work, name, level)):
        return _failed(
            f"{name} {level} is not supported by {', '.join(unable)}: upgrade them, or unregister"
            " brokers that will not come back"
        )
    if level != present:
        if name == METADATA_VERSION:
            _raise_metadata_version(work, level)
        else:
            work.write(FeatureLevel(name=name, level=level))
    return GOOD


def new_incarnation(draws: Draws) -> MetadataIncarnation:
    """The incarnation of a log that has none yet."""
    return MetadataIncarnation(incarnation_id=MetadataIncarnationId(draws.randbytes(16)))


def _unable(work: Workspace, name: str, level: int) -> list[str]:
    """The members that do not support a level, with what they do support."""
    unable = []
    for controller_id in work.settings.voters:
        features = registered_features(work, controller_id)
        if features is None:
            unable.append(f"controller {controller_id} (it has not registered)")
        elif (highest := highest_supported(features, name)) < level:
            unable.append(f"controller {controller_id} (up to {highest})")
    for broker in work.image.brokers.values():
        if (highest := highest_supported(broker.features, name)) < level:
            unable.append(f"broker {broker.broker_id} (up to {highest})")
    return unable


def _raise_metadata_version(work: Workspace, level: int) -> None:
    if TRANSACTION_VERSION in work.image.features and not work.image.has_identity:
        work.write(FeatureLevel(name=TRANSACTION_VERSION, level=0))
    work.write(FeatureLevel(name=METADATA_VERSION, level=level))
    if level >= METADATA_VERSION_WITH_IDENTITY and work.image.incarnation_id is None:
        work.write(new_incarnation(work.draws))


def _failed(message: str) -> Outcome:
    return Outcome(error=ErrorCode.FEATURE_UPDATE_FAILED, message=message)
