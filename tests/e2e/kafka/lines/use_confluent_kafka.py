"""Uses confluent-kafka 1.9 and 2: administration, a producer, a group and its offsets.

Prints one JSON object.
"""

import json
import sys

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

SENT = 300
PARTITIONS = 2
TIMEOUT_S = 30

bootstrap, topic = sys.argv[1:]
admin = AdminClient({"bootstrap.servers": bootstrap})
admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(TIMEOUT_S)
producer = Producer(
    {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "gzip"}
)
errors = []
for number in range(SENT):
    text = str(number).encode()
    producer.produce(
        topic,
        key=text,
        value=text,
        headers=[("number", text)],
        on_delivery=lambda error, _: errors.append(error) if error else None,
    )
assert producer.flush(TIMEOUT_S) == 0
assert not errors, errors

settings = {"bootstrap.servers": bootstrap, "group.id": topic}
consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
consumer.subscribe([topic])
read = set()
while len(read) < SENT:
    record = consumer.poll(TIMEOUT_S)
    assert record is not None, "nothing was read in time"
    assert record.error() is None or record.error().code() == KafkaError._PARTITION_EOF, record
    assert record.headers() == [("number", record.key())]
    read.add(record.value())
consumer.commit(asynchronous=False)
consumer.close()

again = Consumer(settings)
listed = topic in again.list_topics(timeout=TIMEOUT_S).topics
partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
committed = sum(one.offset for one in again.committed(partitions, timeout=TIMEOUT_S))
again.close()
admin.delete_topics([topic])[topic].result(TIMEOUT_S)
print(json.dumps({"sent": SENT, "read": len(read), "committed": committed, "listed": listed}))
