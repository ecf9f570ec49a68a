// kafkajs 1 and 2: administration, a producer, a group and its offsets. Prints one JSON object.
const { CompressionTypes, Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic] = process.argv.slice(2);
const sent = 300;

async function main() {
  const kafka = new Kafka({ clientId: "tests", brokers: bootstrap.split(","), logLevel: logLevel.ERROR });
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1 }], waitForLeaders: true });
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  const messages = Array.from({ length: sent }, (_, i) => ({ key: `${i}`, value: `${i}`, headers: { number: `${i}` } }));
  await producer.send({ topic, compression: CompressionTypes.GZIP, messages });
  await producer.disconnect();

  const consumer = kafka.consumer({ groupId: topic });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const keys = new Set();
  await new Promise((resolve) => {
    consumer.run({
      eachMessage: async ({ message }) => {
        if (`${message.headers.number}` !== `${message.key}`) throw new Error(`headers of ${message.key}`);
        keys.add(`${message.key}`);
        if (keys.size === sent) resolve();
      },
    });
  });
  await consumer.disconnect();
  const listed = (await admin.listTopics()).includes(topic);
  const [{ partitions }] = await admin.fetchOffsets({ groupId: topic, topics: [topic] });
  const committed = partitions.reduce((sum, { offset }) => sum + Number(offset), 0);
  await admin.deleteTopics({ topics: [topic] });
  await admin.disconnect();
  console.log(JSON.stringify({ sent, read: keys.size, committed, listed }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
