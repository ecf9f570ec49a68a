"""The rule for names of topics, and the names of the internal topics. All processes and the SDK use this module."""

from __future__ import annotations

import re
from typing import Final

from odradek_protocol.identity import TOPIC_NAME_BYTES_MAX, TopicName

OFFSETS_TOPIC: Final = TopicName("__consumer_offsets")
TRANSACTIONS_TOPIC: Final = TopicName("__transaction_state")
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Topics in which coordinators store their state. Metadata responses mark them as internal."""
METADATA_TOPIC: Final = TopicName("__cluster_metadata")
"""The name of the metadata log in DescribeQuorum, as in Kafka. No topic may have this name."""
TOPIC_NAME_PATTERN: Final = rf"^(?!\.{{1,2}}$)[a-zA-Z0-9._-]{{1,{TOPIC_NAME_BYTES_MAX}}}$"
"""The rule for names as a regular expression, in a syntax that JSON schemas also support."""
_PATTERN: Final = re.compile(TOPIC_NAME_PATTERN)


def topic_name_error(name: str) -> str | None:
    """Return why a topic may not have this name, or None if it may. The text does not repeat the name."""
    if _PATTERN.fullmatch(name):
        return None
    if not name:
        return "a topic's name must not be empty"
    if name in (".", ".."):
        return "a topic's name must not be '.' or '..'"
    if len(name) > TOPIC_NAME_BYTES_MAX:
        return f"a topic's name may have at most {TOPIC_NAME_BYTES_MAX} characters, this one has {len(name)}"
    return "a topic's name may have only ASCII letters, digits, '.', '_' and '-'"
