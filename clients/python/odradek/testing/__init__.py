"""Support for tests of programs that use Odradek: a cluster in memory, and pytest fixtures.

`MemoryCluster` needs nothing but this package. For the fixtures put
`pytest_plugins = ["odradek.testing.fixtures"]` into the top `conftest.py`.
"""

from odradek.testing.memory_cluster import MemoryCluster, MemoryTransport

__all__ = ["MemoryCluster", "MemoryTransport"]
