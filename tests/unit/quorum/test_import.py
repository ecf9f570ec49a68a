"""Importing the quorum's package has no side effects on the process."""

from __future__ import annotations

import subprocess
import sys

_PROBE = """
import socket
before = socket.inet_ntop, socket.inet_pton
import odradek_metadata_quorum.raft.quorum
assert (socket.inet_ntop, socket.inet_pton) == before
assert socket.inet_ntop(socket.AF_INET, bytes([127, 0, 0, 1])) == "127.0.0.1"
"""


def test_the_socket_module_keeps_its_functions() -> None:
    subprocess.run([sys.executable, "-c", _PROBE], check=True)
