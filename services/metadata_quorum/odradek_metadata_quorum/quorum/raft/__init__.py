"""Raft: pysyncobj with everything that touches disk, network or state replaced."""

import importlib
import socket

# pysyncobj 0.3.17 replaces socket.inet_ntop by a function for Windows when it is imported, on every system.
_inet_ntop = socket.inet_ntop
importlib.import_module("pysyncobj")
socket.inet_ntop = _inet_ntop
