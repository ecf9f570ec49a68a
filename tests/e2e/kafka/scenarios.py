"""The table of clients and scenarios in docs/clients.md: its expected content, and how it is
written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CLIENTS: Final = {
    "confluent-kafka": "confluent-kafka 2 (librdkafka)",
    "aiokafka": "aiokafka 0.14",
    "kafka-python": "kafka-python 3.0",
    "kcat": "kcat 1.7 (librdkafka 2.0)",
    "java": "Apache Kafka's tools 4.3.1 (Java)",
}
SCENARIOS: Final = {
    "compression": "produce and consume: none, gzip, snappy, lz4, zstd",
    "headers": "headers",
    "nulls": "null keys and values",
    "rebalance": "rebalance",
    "static member": "static member",
    "consumer protocol": "consumer protocol (KIP-848)",
    "migration": "rolling from classic to consumer protocol and back",
    "seek by time": "seek by time",
    "create": "admin: create",
    "alter": "admin: alter",
    "describe": "admin: describe",
    "delete": "admin: delete",
    "sasl": "SASL: SCRAM-SHA-256 and -512",
    "sasl over tls": "SASL over TLS: SCRAM or PLAIN",
    "acl denied": "ACL: denied, then allowed",
    "broker killed": "writes while the leader is killed every 20 s",
}
CANNOT: Final = {
    ("aiokafka", "consumer protocol"): "no KIP-848",
    ("aiokafka", "migration"): "no KIP-848",
    ("kafka-python", "consumer protocol"): "no KIP-848",
    ("kafka-python", "migration"): "no KIP-848",
    ("kcat", "consumer protocol"): "no KIP-848",
    ("kcat", "migration"): "no KIP-848",
    ("kcat", "sasl"): "SCRAM before librdkafka 2.6.1 is refused, as by Kafka 4",
    ("kcat", "create"): "no such command",
    ("kcat", "alter"): "no such command",
    ("kcat", "delete"): "no such command",
}
BEGIN: Final = "<!-- scenarios: written by `make scenario-table` -->"
END: Final = "<!-- end of scenarios -->"
Cell = tuple[str, str]


@dataclass(slots=True)
class Results:
    """The outcomes of the tests for each cell of the table."""

    passed: dict[Cell, list[bool]] = field(default_factory=dict)

    def add(self, client: str, names: Sequence[str], *, passed: bool) -> None:
        """Record the outcome of one test for all its scenarios.

        Raises AssertionError for a client or scenario that is not in the table.
        """
        assert client in CLIENTS, f"no client {client!r} in the table"
        for name in names:
            assert name in SCENARIOS, f"no scenario {name!r} in the table"
            self.passed.setdefault((client, name), []).append(passed)

    def told(self, client: str, name: str) -> str:
        """Return the text of a cell."""
        outcomes = self.passed.get((client, name))
        if outcomes is None:
            return CANNOT.get((client, name), "")
        failed = outcomes.count(False)
        return f"{failed} of {len(outcomes)} fail" if failed else f"passes ({len(outcomes)})"


def table(results: Results) -> list[str]:
    """Return the table in Markdown, with one row for each scenario."""
    rows = [" | ".join(["", "scenario", *CLIENTS.values(), ""]).strip()]
    rows.append("|" + "---|" * (len(CLIENTS) + 1))
    for name, title in SCENARIOS.items():
        rows.append(" | ".join(["", title, *(results.told(c, name) for c in CLIENTS), ""]).strip())
    return rows


def put_in(path: Path, begin: str, rows: Sequence[str], end: str) -> None:
    """Replace the text between two lines of a file."""
    before, found_begin, rest = path.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    assert found_begin, f"{path} has no line {begin!r}"
    assert found_end, f"{path} has no line {end!r}"
    path.write_text("\n".join([before + begin, "", *rows, "", end + after]))
