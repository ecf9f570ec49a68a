"""How the table of errors in the README is written."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-errors", action="store_true", help="write README's table of errors")
