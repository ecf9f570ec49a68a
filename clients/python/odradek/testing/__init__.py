"""Support for tests of programs that use Odradek: an in-memory cluster, and pytest fixtures.

`MemoryCluster` needs only this package. To use the fixtures, put `pytest_plugins = ["odradek.testing.fixtures"]` into
the top `conftest.py`.
"""

from odradek.testing.memory_cluster import MemoryCluster, MemoryTransport

__all__ = ["MemoryCluster", "MemoryTransport"]
