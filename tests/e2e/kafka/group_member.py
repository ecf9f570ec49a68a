"""Runs one group member as a process that can be killed: `python -m tests.e2e.kafka.group_member`.

Its arguments are the topic, and librdkafka's configuration as JSON. It prints `ready`, waits for a
line of input, subscribes, and prints its assignment as a JSON list whenever that changes. It ends
at the end of its input.
"""

from __future__ import annotations

import json
import sys
import threading

import confluent_kafka as ck


def main(topic: str, config: str) -> None:
    consumer = ck.Consumer(json.loads(config))
    consumer.list_topics(topic, timeout=30)
    print("ready", flush=True)
    sys.stdin.readline()
    consumer.subscribe([topic])
    ends = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ends.set()), daemon=True).start()
    owned: list[int] = []
    while not ends.is_set():
        consumer.poll(0.02)
        if (now := sorted(one.partition for one in consumer.assignment())) != owned:
            owned = now
            print(json.dumps(owned), flush=True)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
