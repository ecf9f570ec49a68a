// kafka-go: administration, a producer, a group and its offsets. Prints one JSON object.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

const sent, partitions = 300, 2

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	seeds, topic := strings.Split(os.Args[1], ","), os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	client := &kafka.Client{Addr: kafka.TCP(seeds...)}
	wanted := []kafka.TopicConfig{{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1}}
	created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: wanted})
	must(err)
	must(created.Errors[topic])
	writer := &kafka.Writer{
		Addr: client.Addr, Topic: topic, RequiredAcks: kafka.RequireAll, Compression: kafka.Gzip,
		BatchTimeout: 10 * time.Millisecond,
	}
	messages := make([]kafka.Message, sent)
	for i := range messages {
		text := []byte(fmt.Sprint(i))
		messages[i] = kafka.Message{Key: text, Value: text, Headers: []kafka.Header{{Key: "number", Value: text}}}
	}
	must(writer.WriteMessages(ctx, messages...))
	must(writer.Close())

	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: seeds, GroupID: topic, Topic: topic, StartOffset: kafka.FirstOffset, MaxWait: 200 * time.Millisecond,
	})
	read := map[string]bool{}
	for len(read) < sent {
		message, err := reader.FetchMessage(ctx)
		must(err)
		if len(message.Headers) != 1 || string(message.Headers[0].Value) != string(message.Key) {
			log.Fatalf("headers of %s", message.Key)
		}
		must(reader.CommitMessages(ctx, message))
		read[string(message.Key)] = true
	}
	must(reader.Close())

	metadata, err := client.Metadata(ctx, &kafka.MetadataRequest{})
	must(err)
	listed := false
	for _, one := range metadata.Topics {
		listed = listed || one.Name == topic
	}
	offsets, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: topic, Topics: map[string][]int{topic: {0, 1}},
	})
	must(err)
	committed := int64(0)
	for _, one := range offsets.Topics[topic] {
		committed += one.CommittedOffset
	}
	deleted, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	must(err)
	must(deleted.Errors[topic])
	told := map[string]interface{}{"sent": sent, "read": len(read), "committed": committed, "listed": listed}
	must(json.NewEncoder(os.Stdout).Encode(told))
}
