// sarama, configured for three versions of Kafka: each codec, headers, a group, its offsets.
// Prints one JSON object per version and codec.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

const sent = 2000

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

type counter struct{ read atomic.Int64 }

func (*counter) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*counter) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (c *counter) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			session.MarkMessage(message, "")
			c.read.Add(1)
		case <-session.Context().Done():
			return nil
		}
	}
}

func run(seeds []string, topic string, config *sarama.Config) map[string]any {
	admin, err := sarama.NewClusterAdmin(seeds, config)
	must(err)
	defer admin.Close()
	must(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1}, false))
	producer, err := sarama.NewSyncProducer(seeds, config)
	must(err)
	messages := make([]*sarama.ProducerMessage, sent)
	for i := range messages {
		messages[i] = &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(fmt.Sprint(i)), Value: sarama.StringEncoder(strings.Repeat("v", i%100)),
			Headers: []sarama.RecordHeader{{Key: []byte("a"), Value: []byte("b")}},
		}
	}
	must(producer.SendMessages(messages))
	must(producer.Close())

	group, err := sarama.NewConsumerGroup(seeds, topic, config)
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	count := new(counter)
	go func() {
		for count.read.Load() < sent && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	for ctx.Err() == nil {
		must(group.Consume(ctx, []string{topic}, count))
	}
	must(group.Close())
	offsets, err := admin.ListConsumerGroupOffsets(topic, map[string][]int32{topic: {0, 1}})
	must(err)
	committed := int64(0)
	for _, block := range offsets.Blocks[topic] {
		committed += block.Offset
	}
	must(admin.DeleteTopic(topic))
	return map[string]any{"sent": sent, "read": count.read.Load(), "committed": committed}
}

func main() {
	seeds, topic := strings.Split(os.Args[1], ","), os.Args[2]
	for _, version := range []sarama.KafkaVersion{sarama.V1_0_0_0, sarama.V2_8_0_0, sarama.MaxVersion} {
		for codec := sarama.CompressionNone; codec <= sarama.CompressionZSTD; codec++ {
			if codec == sarama.CompressionZSTD && !version.IsAtLeast(sarama.V2_1_0_0) {
				continue
			}
			config := sarama.NewConfig()
			config.Version = version
			config.Net.MaxOpenRequests = 1
			config.Producer.Idempotent = true
			config.Producer.RequiredAcks = sarama.WaitForAll
			config.Producer.Return.Successes = true
			config.Producer.Compression = codec
			config.Consumer.Offsets.Initial = sarama.OffsetOldest
			told := run(seeds, fmt.Sprintf("%s-%s-%s", topic, version, codec), config)
			must(json.NewEncoder(os.Stdout).Encode(told))
		}
	}
}
