"""A whole cluster as child processes of this one: what `odradek dev`, the demo and tests run on."""

from __future__ import annotations

from odradek.embedded.child_process import ChildProcess, ChildProcessFailed
from odradek.embedded.embedded_cluster import ClusterPlan, EmbeddedCluster

__all__ = ["ChildProcess", "ChildProcessFailed", "ClusterPlan", "EmbeddedCluster"]
