"""Kafka's rule for the names of topics."""

from __future__ import annotations

import pytest

from odradek_protocol.topic_names import topic_name_error


@pytest.mark.parametrize("name", ["a", "a.b.", "...", "A-1_z.9", "a" * 249])
def test_names_that_are_allowed(name: str) -> None:
    assert topic_name_error(name) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "empty"),
        (".", "'.' or '..'"),
        ("..", "'.' or '..'"),
        ("a" * 250, "at most 249 characters, this one has 250"),
        ("a/b", "ASCII letters"),
        ("a b", "ASCII letters"),
        ("\u00e4", "ASCII letters"),
        ("a\n", "ASCII letters"),
    ],
)
def test_names_that_are_not(name: str, said: str) -> None:
    assert said in (topic_name_error(name) or "")
