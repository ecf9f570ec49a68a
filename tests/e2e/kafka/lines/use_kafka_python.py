"""Uses kafka-python 1.4 to 3: administration, a producer, a group and its offsets.

Prints one JSON object.
"""

import json
import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

SENT = 300
PARTITIONS = 2
TIMEOUT_S = 30

bootstrap, topic = sys.argv[1:]
admin = KafkaAdminClient(bootstrap_servers=bootstrap)
admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", compression_type="gzip")
for number in range(SENT):
    text = str(number).encode()
    producer.send(topic, key=text, value=text, headers=[("number", text)])
producer.flush(TIMEOUT_S)
producer.close()

consumer = KafkaConsumer(
    topic,
    bootstrap_servers=bootstrap,
    group_id=topic,
    auto_offset_reset="earliest",
    enable_auto_commit=False,
    consumer_timeout_ms=TIMEOUT_S * 1000,
)
read = set()
for record in consumer:
    assert record.headers == [("number", record.key)] or list(record.headers) == [
        ("number", record.key)
    ], record
    read.add(record.value)
    if len(read) == SENT:
        break
consumer.commit()
consumer.close()

again = KafkaConsumer(bootstrap_servers=bootstrap, group_id=topic)
listed = topic in again.topics()
committed = sum(again.committed(TopicPartition(topic, index)) for index in range(PARTITIONS))
again.close()
admin.delete_topics([topic])
admin.close()
print(json.dumps({"sent": SENT, "read": len(read), "committed": committed, "listed": listed}))
