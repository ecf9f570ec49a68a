// kafka-go: a group reads what was written with each codec. Prints one JSON object per codec.
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

const sent = 1000

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	seeds := strings.Split(os.Args[1], ",")
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	client := &kafka.Client{Addr: kafka.TCP(seeds...)}
	for _, codec := range []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		topic := fmt.Sprintf("%s-%d", os.Args[2], codec)
		wanted := []kafka.TopicConfig{{Topic: topic, NumPartitions: 2, ReplicationFactor: 1}}
		created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: wanted})
		must(err)
		must(created.Errors[topic])
		writer := &kafka.Writer{
			Addr: client.Addr, Topic: topic, RequiredAcks: kafka.RequireAll, Compression: codec,
			BatchTimeout: 10 * time.Millisecond,
		}
		messages := make([]kafka.Message, sent)
		for i := range messages {
			messages[i] = kafka.Message{Key: []byte(fmt.Sprint(i)), Value: []byte("value")}
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
			must(reader.CommitMessages(ctx, message))
			read[string(message.Key)] = true
		}
		must(reader.Close())
		must(json.NewEncoder(os.Stdout).Encode(map[string]int{"sent": sent, "read": len(read)}))
	}
}
