"""One member of a group, a process that can be killed: `python -m tests.e2e.kafka.group_member`.

Arguments: topic, and librdkafka's configuration as JSON. It says `ready`, waits for a line, subscribes, and prints what
it owns, a JSON list, whenever that changes. The end of its input ends it.
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
