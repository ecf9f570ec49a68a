"""Runs a well-behaved client in a separate process, which writes and reads 1,000 records per
second over Kafka's protocol.

It gets its settings as JSON. For each line on its standard input it prints the latencies since the
previous line: from send to acknowledgement (acks=all), and from send to receipt by the consumer.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import confluent_kafka as ck

TICK_S = 0.01
RECORDS_A_TICK = 10


class Latencies:
    """The latencies of the current window, in ms."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, list[float]] = {"produce": [], "consume": []}
        self._failed = 0

    def add(self, kind: str, sent_ns: int) -> None:
        took_ms = (time.monotonic_ns() - sent_ns) / 1e6
        with self._lock:
            self._values[kind].append(took_ms)

    def fail(self) -> None:
        with self._lock:
            self._failed += 1

    def window(self) -> dict[str, float]:
        """Return the figures since the last call."""
        with self._lock:
            values, self._values = self._values, {"produce": [], "consume": []}
            failed, self._failed = self._failed, 0
        figures: dict[str, float] = {"failed": failed}
        for kind, each in values.items():
            each.sort()
            figures[f"{kind}_count"] = len(each)
            figures[f"{kind}_p99_ms"] = each[int(0.99 * len(each))] if each else -1.0
            figures[f"{kind}_max_ms"] = each[-1] if each else -1.0
        return figures


def main() -> None:
    settings = json.loads(sys.argv[1])
    topic = settings.pop("topic")
    latencies, stopped = Latencies(), threading.Event()
    consumer = ck.Consumer(
        {
            **settings,
            "group.id": "honest",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.subscribe([topic])

    def consume() -> None:
        while not stopped.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                latencies.add("consume", int(message.value() or b"0"))
        consumer.close()

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            latencies.add("produce", int(message.value()))
        else:
            latencies.fail()

    def produce() -> None:
        producer = ck.Producer({**settings, "acks": "all", "linger.ms": 5})
        due_s = time.monotonic()
        while not stopped.is_set():
            for _ in range(RECORDS_A_TICK):
                producer.produce(topic, b"%d" % time.monotonic_ns(), on_delivery=delivered)
            due_s += TICK_S
            while (left_s := due_s - time.monotonic()) > 0:
                producer.poll(left_s)
        producer.flush(10)

    threads = [threading.Thread(target=consume), threading.Thread(target=produce)]
    for thread in threads:
        thread.start()
    for _ in sys.stdin:
        print(json.dumps(latencies.window()), flush=True)
    stopped.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
