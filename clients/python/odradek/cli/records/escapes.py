"""Characters that a command line cannot hold, written with a backslash."""

from __future__ import annotations

import re
from typing import Final

ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
r"""By the letter after the backslash; any other letter stands for itself."""


def unescaped(text: str) -> str:
    r"""The text with each `\t`, `\n`, `\0`, ... replaced by its character."""
    return re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL)
