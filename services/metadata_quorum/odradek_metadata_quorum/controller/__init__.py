"""The controller as a state machine without I/O. `rpc/controller_host.py` runs it and proposes its decisions to the
quorum.

The table in `services/broker/odradek_broker/partition/README.md` explains rule numbers such as R20.
"""

from odradek_metadata_quorum.controller.controller import Controller
from odradek_metadata_quorum.controller.requests import ControllerSettings, Decision, Draws, Outcome

__all__ = ["Controller", "ControllerSettings", "Decision", "Draws", "Outcome"]
