"""A group is assigned to the same partition of `__consumer_offsets` as in Kafka, where Kafka's
tools look for it.
"""

from __future__ import annotations

import pytest

from odradek_broker.coordination.placement import absolute_java_hash


@pytest.mark.parametrize(
    ("text", "hash_code"),  # as a JVM says
    [
        ("", 0),
        ("hello", 99162322),
        ("readers", 1080410128),
        ("größe", 98762257),
        ("flights", -771814909),
        ("my-group", -1906497762),
        ("orders-\U0001f600", -388944565),
    ],
)
def test_the_sign_of_javas_hash_is_dropped(text: str, hash_code: int) -> None:
    assert absolute_java_hash(text) == abs(hash_code)


def test_the_lowest_int_counts_as_zero() -> None:
    assert absolute_java_hash("polygenelubricants") == 0  # -2147483648
