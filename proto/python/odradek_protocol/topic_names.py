"""Names of topics: which are allowed, and which are internal; the same for every process and the SDK."""

from __future__ import annotations

import re
from typing import Final

from odradek_protocol.identity import TOPIC_NAME_BYTES_MAX, TopicName

OFFSETS_TOPIC: Final = TopicName("__consumer_offsets")
TRANSACTIONS_TOPIC: Final = TopicName("__transaction_state")
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Topics that coordinators keep their state in; metadata marks them as internal."""
METADATA_TOPIC: Final = TopicName("__cluster_metadata")
"""The name by which DescribeQuorum names the metadata log. No topic may have it."""
TOPIC_NAME_PATTERN: Final = rf"^(?!\.{{1,2}}$)[a-zA-Z0-9._-]{{1,{TOPIC_NAME_BYTES_MAX}}}$"
"""The rule for names as a regular expression, in a syntax that JSON schemas have as well."""
_PATTERN: Final = re.compile(TOPIC_NAME_PATTERN)


def topic_name_error(name: str) -> str | None:
    """Return what is wrong with the name of a topic, without repeating the name; None if the name is allowed."""
    if _PATTERN.fullmatch(name):
        return None
    if not name:
        return "a topic's name must not be empty"
    if name in (".", ".."):
        return "a topic's name must not be '.' or '..'"
    if len(name) > TOPIC_NAME_BYTES_MAX:
        return f"a topic's name has at most {TOPIC_NAME_BYTES_MAX} characters, this one has {len(name)}"
    return "a topic's name has only ASCII letters, digits, '.', '_' and '-'"
