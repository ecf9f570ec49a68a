// @platformatic/kafka: groups by both protocols. Prints one JSON object per protocol.
import { Admin, Consumer, MessagesStreamModes, Producer, stringDeserializers, stringSerializers } from "@platformatic/kafka";

const [bootstrap, topic] = process.argv.slice(2);
const common = { clientId: "tests", bootstrapBrokers: bootstrap.split(",") };
const admin = new Admin(common);
await admin.createTopics({ topics: [topic], partitions: 3, replicas: 1 });
const producer = new Producer({ ...common, serializers: stringSerializers, idempotent: true, acks: -1 });
const sent = 1000;
await producer.send({ messages: Array.from({ length: sent }, (_, i) => ({ topic, key: `${i}`, value: `v${i}` })) });
await producer.close();
for (const groupProtocol of ["classic", "consumer"]) {
  const consumer = new Consumer({ ...common, groupId: `${topic}-${groupProtocol}`, deserializers: stringDeserializers, groupProtocol });
  const stream = await consumer.consume({ topics: [topic], mode: MessagesStreamModes.EARLIEST, autocommit: true, maxWaitTime: 200 });
  const keys = new Set();
  for await (const message of stream) {
    keys.add(message.key);
    if (keys.size === sent) break;
  }
  await consumer.close(true);
  console.log(JSON.stringify({ sent, read: keys.size }));
}
await admin.close();
