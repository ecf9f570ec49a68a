"""The controller as a state machine without I/O: it decides, and `rpc/controller_host.py` carries its decisions
out.
"""

from odradek_metadata_quorum.controller.controller import Controller
from odradek_metadata_quorum.controller.requests import ControllerSettings, Decision, Draws, Outcome

__all__ = ["Controller", "ControllerSettings", "Decision", "Draws", "Outcome"]
