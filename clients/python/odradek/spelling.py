"""Suggestions for names and values that a user has misspelt."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """Return "; did you mean NAME?" with the most similar name in `known`, or "" if none is similar.

    The case of letters does not count.
    """
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(text.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
