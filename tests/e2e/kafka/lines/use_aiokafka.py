"""Uses aiokafka 0.8 to 0.14: administration, a producer, a group and its offsets.

Prints one JSON object.
"""

import asyncio
import json
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

SENT = 300
PARTITIONS = 2
TIMEOUT_S = 30


async def use(bootstrap, topic):
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, compression_type="gzip"
    )
    await producer.start()
    numbers = [str(number).encode() for number in range(SENT)]
    sends = [
        await producer.send(topic, key=text, value=text, headers=[("number", text)])
        for text in numbers
    ]
    await asyncio.gather(*sends)
    await producer.stop()

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    read = set()
    while len(read) < SENT:
        record = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
        assert list(record.headers) == [("number", record.key)], record
        read.add(record.value)
    await consumer.commit()
    await consumer.stop()

    again = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=topic)
    await again.start()
    listed = topic in await again.topics()
    committed = 0
    for index in range(PARTITIONS):
        committed += await again.committed(TopicPartition(topic, index))
    await again.stop()
    await admin.delete_topics([topic])
    await admin.close()
    return {"sent": SENT, "read": len(read), "committed": committed, "listed": listed}


print(json.dumps(asyncio.run(use(*sys.argv[1:]))))
