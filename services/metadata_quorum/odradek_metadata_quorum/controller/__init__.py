"""The controller as a pure state machine: it decides, and its host acts."""

from odradek_metadata_quorum.controller.controller import Controller
from odradek_metadata_quorum.controller.requests import ControllerSettings, Decision, Draws, Outcome

__all__ = ["Controller", "ControllerSettings", "Decision", "Draws", "Outcome"]
