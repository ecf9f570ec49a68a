"""Changes of feature levels, and the registrations of controllers, which limit the levels.

Programs of different releases may run in one cluster. So a level may be raised only if every registered broker and
every voter supports it; fenced brokers count, because they may return (KIP-584). `metadata.version` is never lowered,
because the log has records of its levels.

Every voter registers the levels that its program supports with the active controller, at its start and then every few
seconds (KIP-919). From `metadata.version` 2 on, a registration that differs from the voter's last one is written as a
record. Below level 2 no such record exists, so the active controller stores the registration in memory for
`REGISTRATION_MS_MAX`. If a voter is downgraded to an older program, which does not register, its registration expires.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_metadata_quorum.controller.requests import (
    GOOD,
    Draws,
    Outcome,
    RegisterControllerRequest,
)
from odradek_metadata_quorum.controller.workspace import ControllerMemory, Workspace
from odradek_protocol.identity import ControllerId, MetadataIncarnationId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import (
    METADATA_VERSION,
    METADATA_VERSION_WITH_IDENTITY,
    SUPPORTED_FEATURES,
    TRANSACTION_VERSION,
    FeatureLevels,
    highest_supported,
)
from odradek_protocol.metadata.records import FeatureLevel, MetadataIncarnation, RegisterController


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """The levels of one feature. `level_min` and `level_max` are those that this release supports."""

    name: str
    level: int  # the level in use
    level_min: int
    level_max: int
    level_common: int  # the highest level that all brokers and controllers support
    # Texts for people: the brokers and controllers that do not support level_max.
    held_back_by: tuple[str, ...]


def describe_features(work: Workspace) -> tuple[FeatureDescription, ...]:
    """Describe all features that this release knows, in the order of their names."""
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
    """Set the level of a feature. Every registered broker and every voter must support the new level. A lower level
    needs `allow_downgrade`.
    """
    if name not in SUPPORTED_FEATURES:
        return _failed(
            f"there is no feature {name}; the features are {', '.join(SUPPORTED_FEATURES)}"
        )
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
        return _failed(f"{name} is at level {present}: to lower it to {level}, allow the downgrade")
    if level > present and (unable := _unable(work, name, level)):
        return _failed(
            f"{name} {level} is not supported by {', '.join(unable)}: upgrade these processes, or unregister"
            " brokers that will not start again"
        )
    if level < present and (unable := _unable_below(work, name, level)):
        return _failed(f"{name} {level} is no longer supported by {', '.join(unable)}")
    if level != present:
        if name == METADATA_VERSION:
            _raise_metadata_version(work, level)
        else:
            work.write(FeatureLevel(name=name, level=level))
    return GOOD


def new_incarnation(draws: Draws) -> MetadataIncarnation:
    """Return the record that gives a metadata log a new, random incarnation id."""
    return MetadataIncarnation(incarnation_id=MetadataIncarnationId(draws.randbytes(16)))


def _unable(work: Workspace, name: str, level: int) -> list[str]:
    """Return, as texts, the voters and registered brokers that do not support `level`, with their highest levels."""
    unable = []
    for controller_id in work.settings.voters:
        features = registered_features(work, controller_id)
        if features is None:
            unable.append(
                f"controller {controller_id} (it has not registered; a controller that runs"
                " a release with this feature registers within 2 s)"
            )
        elif (highest := highest_supported(features, name)) < level:
            unable.append(f"controller {controller_id} (up to {highest})")
    for broker in work.image.brokers.values():
        if (highest := highest_supported(broker.features, name)) < level:
            unable.append(f"broker {broker.broker_id} (up to {highest})")
    return unable


def _unable_below(work: Workspace, name: str, level: int) -> list[str]:
    """Return, as texts, the registered brokers and controllers whose lowest supported level is above `level`."""
    members = {f"broker {b.broker_id}": b.feature_minima for b in work.image.brokers.values()}
    for controller in work.image.controllers.values():
        members[f"controller {controller.controller_id}"] = controller.feature_minima
    lowest = {member: dict(minima).get(name, 0) for member, minima in members.items()}
    return [f"{member} (from {least})" for member, least in lowest.items() if least > level]


def _raise_metadata_version(work: Workspace, level: int) -> None:
    if TRANSACTION_VERSION in work.image.features and not work.image.has_identity:
        work.write(FeatureLevel(name=TRANSACTION_VERSION, level=0))
    work.write(FeatureLevel(name=METADATA_VERSION, level=level))
    if level >= METADATA_VERSION_WITH_IDENTITY and work.image.incarnation_id is None:
        work.write(new_incarnation(work.draws))


def _failed(message: str) -> Outcome:
    return Outcome(error=ErrorCode.FEATURE_UPDATE_FAILED, message=message)


REGISTRATION_MS_MAX: Final = 10_000


def register_controller(work: Workspace, request: RegisterControllerRequest) -> Outcome:
    """Register a voter with the levels that it supports. No record is written if the voter's
    registration is unchanged.
    """
    voters = work.settings.voters
    if request.controller_id not in voters:
        return Outcome(
            error=ErrorCode.INVALID_REGISTRATION,
            message=f"controller {request.controller_id} is not a voter of this quorum; the voters"
            f" are {', '.join(map(str, voters))}: correct controller.quorum.voters of that controller",
        )
    work.controllers[request.controller_id] = ControllerMemory(
        features=request.features, registered_at_ms=work.now_ms
    )
    registration = RegisterController(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        endpoints=request.endpoints,
        features=request.features,
        feature_minima=request.feature_minima,
        host_id=request.host_id if work.image.has_hosts else None,
    )
    registered = work.image.controllers.get(request.controller_id)
    if work.image.has_identity and registered != registration:
        work.write(registration)
    return GOOD


def registered_features(work: Workspace, controller_id: ControllerId) -> FeatureLevels | None:
    """Return the highest feature levels that a voter supports, or None if it has not registered."""
    memory = work.controllers.get(controller_id)
    if memory is not None and work.now_ms - memory.registered_at_ms <= REGISTRATION_MS_MAX:
        return memory.features
    registered = work.image.controllers.get(controller_id)
    return None if registered is None else registered.features
