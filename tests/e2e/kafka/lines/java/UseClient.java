// The Java clients, 2.1 to 4: administration, a producer, a group and its offsets. Prints one JSON object.

import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class UseClient {
    static final int SENT = 300;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        AdminClient admin = AdminClient.create(settings);
        admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get();

        Properties writes = new Properties();
        writes.putAll(settings);
        writes.put("enable.idempotence", "true");
        writes.put("compression.type", "gzip");
        StringSerializer serializer = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(writes, serializer, serializer)) {
            for (int number = 0; number < SENT; number++) {
                String text = "" + number;
                ProducerRecord<String, String> record = new ProducerRecord<>(topic, text, text);
                record.headers().add("number", text.getBytes());
                producer.send(record);
            }
        }

        settings.put("group.id", topic);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        StringDeserializer deserializer = new StringDeserializer();
        Set<String> read = new HashSet<>();
        boolean listed;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, deserializer, deserializer)) {
            consumer.subscribe(List.of(topic));
            while (read.size() < SENT) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(30))) {
                    String number = new String(record.headers().lastHeader("number").value());
                    if (!number.equals(record.key())) throw new IllegalStateException("headers of " + record.key());
                    read.add(record.key());
                }
            }
            consumer.commitSync();
            listed = consumer.listTopics().containsKey(topic);
        }
        long committed = admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get()
            .values().stream().mapToLong(one -> one.offset()).sum();
        admin.deleteTopics(List.of(topic)).all().get();
        admin.close();
        System.out.printf("{\"sent\": %d, \"read\": %d, \"committed\": %d, \"listed\": %b}%n", SENT, read.size(), committed, listed);
    }
}
