"""The releases of clients that are tested, and the table of them in docs/clients.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

RELEASES: Final[dict[str, tuple[str, ...]]] = {
    "kafka-python": ("1.4.7", "2.0.2", "2.0.6", "2.1.6", "2.2.21", "2.3.3", "3.0.12"),
    "aiokafka": ("0.8.1", "0.9.0", "0.10.0", "0.11.0", "0.12.0", "0.13.0", "0.14.0"),
    "confluent-kafka (librdkafka)": ("1.9.2", "2.0.2", "2.6.1", "2.11.1", "2.16.1"),
    "Java": ("2.1.1", "2.8.2", "3.9.2", "4.0.2", "4.4.0"),
    "sarama": (
        "1.61.1",
        "1.61.1 as to Kafka 0.11",
        "1.61.1 as to Kafka 1.0",
        "1.61.1 as to Kafka 2.1",
    ),
    "sarama (Shopify)": ("1.38.1", "1.38.1 as to Kafka 2.1"),
    "kafka-go": ("0.4.51",),
    "franz-go": ("1.0.0", "1.22.2"),
    "kafkajs": ("1.16.0", "2.2.4"),
    "rdkafka (Rust, librdkafka)": ("0.39.0",),
}
BEGIN: Final = "<!-- releases: written by `make scenario-table` -->"
END: Final = "<!-- end of releases -->"


@dataclass(slots=True)
class Outcomes:
    """Whether each release passed."""

    passed: dict[tuple[str, str], bool] = field(default_factory=dict)

    def add(self, client: str, release: str, *, passed: bool) -> None:
        """Record the outcome of a test.

        Raises AssertionError for a release that is not in the table.
        """
        assert release in RELEASES.get(client, ()), f"no {client} {release} in the table"
        self.passed[client, release] = passed and self.passed.get((client, release), True)

    def cell(self, client: str, release: str) -> str:
        """Return a release as the table shows it: only its number if it passed."""
        passed = self.passed.get((client, release))
        return release if passed else f"{release} {'was not run' if passed is None else 'fails'}"


def table(outcomes: Outcomes) -> list[str]:
    """Return the table in Markdown, with one row for each client."""
    return [
        "| client | releases that write, read in a group, commit and administrate |",
        "|---|---|",
        *(
            f"| {client} | {', '.join(outcomes.cell(client, one) for one in releases)} |"
            for client, releases in RELEASES.items()
        ),
    ]
