"""Application logs: send the records of `logging` to a topic, and read them back by time.

The handler uses the synchronous SDK: `send` puts a record into a buffer and returns. If the cluster is unavailable for
so long that the buffer is full, the handler waits 100 ms and then drops the line, and the program continues.
"""

from __future__ import annotations

import json
import logging
import time

import odradek.sync
from odradek.errors import OdradekError, TopicExists

TOPIC = "logs"


class TopicHandler(logging.Handler):
    """Sends each line as JSON with the logger's name as the key, so that the lines of a component stay in order."""

    def __init__(self, client: odradek.sync.Client, topic: str) -> None:
        super().__init__()
        self.dropped = 0
        self._producer = client.producer(max_block_ms=100, compression="zstd")
        self._topic = topic

    def emit(self, record: logging.LogRecord) -> None:
        line = {"level": record.levelname, "logger": record.name, "message": record.getMessage()}
        try:
            self._producer.send(
                self._topic,
                json.dumps(line).encode(),
                key=record.name.encode(),
                timestamp_ms=int(record.created * 1000),
            )
        except OdradekError:
            self.dropped += 1

    def close(self) -> None:
        self._producer.close(timeout_s=5)
        super().close()


def work(log: logging.Logger, jobs: int) -> None:
    """Log some lines, as an application would."""
    for job in range(jobs):
        log.info("job %d begins", job)
        if job % 10 == 9:
            log.error("job %d failed", job)


def main() -> None:
    with odradek.sync.Client() as client:
        try:
            client.admin.create_topic(TOPIC, partitions=3, replication_factor=1)
        except TopicExists:
            client.admin.delete_records({(TOPIC, index): -1 for index in range(3)})
        handler = TopicHandler(client, TOPIC)
        began_ms = int(time.time() * 1000)
        for component in ("billing", "search", "mail"):
            log = logging.getLogger(component)
            log.setLevel(logging.INFO)
            log.propagate = False
            log.addHandler(handler)
            work(log, 100)
            log.removeHandler(handler)
        handler.close()

        with client.consumer(TOPIC) as consumer:
            consumer.seek_to_timestamp(began_ms)  # Skips lines of earlier runs.
            lines: list[dict[str, str]] = []
            while len(lines) < 330:
                records = consumer.getmany(timeout_ms=30_000)
                if not records:
                    raise SystemExit(f"only {len(lines)} of 330 lines were read from {TOPIC}")
                lines += [json.loads(record.value) for record in records]
    errors = [line for line in lines if line["level"] == "ERROR"]
    print(f"{len(lines)} lines, {len(errors)} errors, {handler.dropped} dropped")


if __name__ == "__main__":
    main()
