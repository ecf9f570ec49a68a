"""Registrations of controllers: which feature levels the program of each voter supports (KIP-919).

Every voter registers with the active controller when it starts, and again every few seconds. From
`metadata.version` 2 on a registration that says something new is a record. Below, the record does
not exist, so the active controller remembers it for `REGISTRATION_MS_MAX` after it was made: a voter
that went back to an older program, which registers nothing, is forgotten in time.
"""

from __future__ import annotations

from typing import Final

from odradek_metadata_quorum.controller.decision import GOOD, Outcome
from odradek_metadata_quorum.controller.requests import RegisterControllerRequest
from odradek_metadata_quorum.controller.workspace import ControllerMemory, Workspace
from odradek_protocol.identity import ControllerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import FeatureLevels
from odradek_protocol.metadata.records import RegisterController

REGISTRATION_MS_MAX: Final = 10_000


def register_controller(work: Workspace, request: RegisterControllerRequest) -> Outcome:
    """Note what a voter supports; the same registration again writes nothing."""
    voters = work.settings.voters
    if request.controller_id not in voters:
        return Outcome(
            error=ErrorCode.INVALID_REGISTRATION,
            message=f"controller {request.controller_id} is not a voter of this quorum; the voters"
            f" are {', '.join(map(str, voters))}: correct its controller.quorum.voters",
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
    )
    registered = work.image.controllers.get(request.controller_id)
    if work.image.has_identity and registered != registration:
        work.write(registration)
    return GOOD


def registered_features(work: Workspace, controller_id: ControllerId) -> FeatureLevels | None:
    """The highest levels that a voter supports; None when it has not registered."""
    memory = work.controllers.get(controller_id)
    if memory is not None and work.now_ms - memory.registered_at_ms <= REGISTRATION_MS_MAX:
        return memory.features
    registered = work.image.controllers.get(controller_id)
    return None if registered is None else registered.features
