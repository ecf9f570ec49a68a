// kafkajs: an idempotent producer, a group, administration. Prints one JSON object.
import kafkajs from "kafkajs";

const { CompressionTypes, Kafka, logLevel } = kafkajs;
const [bootstrap, topic] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "tests", brokers: bootstrap.split(","), logLevel: logLevel.ERROR });

const admin = kafka.admin();
await admin.connect();
await admin.createTopics({ topics: [{ topic, numPartitions: 3, replicationFactor: 1 }], waitForLeaders: true });
const producer = kafka.producer({ idempotent: true });
await producer.connect();
let sent = 0;
for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) {
  const messages = Array.from({ length: 1000 }, (_, i) => ({ key: `${i}`, value: `v${i}`, headers: { number: `${i}` } }));
  await producer.send({ topic, compression, messages });
  sent += messages.length;
}
await producer.disconnect();

const consumer = kafka.consumer({ groupId: topic });
await consumer.connect();
await consumer.subscribe({ topics: [topic], fromBeginning: true });
let read = 0;
await new Promise((resolve) => {
  consumer.run({
    eachMessage: async ({ message }) => {
      if (`${message.headers.number}` !== `${message.key}`) throw new Error(`header of ${message.key}`);
      if (++read === sent) resolve();
    },
  });
});
await consumer.disconnect();
const [{ partitions }] = await admin.fetchOffsets({ groupId: topic, topics: [topic] });
const committed = partitions.reduce((sum, { offset }) => sum + Number(offset), 0);
const ends = await admin.fetchTopicOffsets(topic);
const end = ends.reduce((sum, { offset }) => sum + Number(offset), 0);
await admin.createPartitions({ topicPartitions: [{ topic, count: 5 }] });
await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "5" }] });
await admin.deleteGroups([topic]);
await admin.deleteTopics({ topics: [topic] });
await admin.disconnect();
console.log(JSON.stringify({ sent, read, committed, end }));
