"""The controller as a state machine without I/O: it decides, and `rpc/controller_host.py` carries its decisions
out.

Rule numbers such as R20 are those of the table in `services/broker/odradek_broker/partition/README.md`.
"""

from odradek_metadata_quorum.controller.controller import Controller
from odradek_metadata_quorum.controller.requests import ControllerSettings, Decision, Draws, Outcome

__all__ = ["Controller", "ControllerSettings", "Decision", "Draws", "Outcome"]
