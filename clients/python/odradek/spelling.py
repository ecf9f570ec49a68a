"""Suggestions for names and values that a user has misspelt."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """Return a suggestion for a misspelt `text`, such as "; did you mean orders?", or "" if no name in `known` is
    similar. The case of letters does not count.
    """
    near = similar_to(text, known)
    return f"; did you mean {near[0]}?" if near else ""


def similar_to(text: str, known: Iterable[str], *, count_max: int = 1) -> list[str]:
    """Return the names in `known` that are most similar to `text`, the most similar one first. The case of letters does
    not count.
    """
    by_lower = {name.lower(): name for name in known}
    return [by_lower[near] for near in get_close_matches(text.lower(), by_lower, n=count_max)]
