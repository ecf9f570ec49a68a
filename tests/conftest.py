"""What holds for every test."""

from __future__ import annotations

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A first example pays for imports, and machines are shared: time is pytest-timeout's business.
settings.register_profile("odradek", deadline=None)
settings.load_profile("odradek")


class ByFixtures(LoadScopeScheduling):
    """Tests that share a cluster or a JVM go to one worker: a folder of e2e or integration, a file else."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        folders = path.split("/")
        return "/".join(folders[:3]) if folders[1] in {"e2e", "integration"} else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFixtures:
    return ByFixtures(config, log)
