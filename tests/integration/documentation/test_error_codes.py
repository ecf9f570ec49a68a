"""docs/error-codes.md has every code that a service sends, with its number and whether it is
retriable, as in the code's table.
"""

from __future__ import annotations

import re

from odradek_protocol.kafka.error_codes import ErrorCode
from tests.integration.documentation.pages import ROOT

PAGE = ROOT / "docs/error-codes.md"
ROW = re.compile(r"^\| (-?\d+) \| ([A-Z_]+) \| (yes)? ?\| (.+) \| (.+) \|$", re.MULTILINE)


def test_the_page_has_every_code_that_services_send() -> None:
    used = {
        name
        for path in (ROOT / "services").rglob("*.py")
        for name in re.findall(r"\bErrorCode\.([A-Z_]+)\b", path.read_text())
    }
    assert len(used) > 50, (
        "the code names its errors in another way, and this test looks at nothing"
    )
    listed = {row[1] for row in ROW.findall(PAGE.read_text())}
    assert listed == used - {"NONE"}


def test_numbers_and_retries_are_those_of_the_protocol() -> None:
    rows = ROW.findall(PAGE.read_text())
    numbers = [int(number) for number, *_ in rows]
    assert numbers == sorted(numbers)
    for number, name, retried, cause, way_out in rows:
        code = ErrorCode(int(number))
        assert (code.name, code.retriable) == (name, retried == "yes")
        assert cause
        assert way_out
