"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A first example pays for imports, and machines are shared: time is pytest-timeout's business.
settings.register_profile("odradek", deadline=None)
settings.load_profile("odradek")
