// sarama, configured for the version of Kafka in the third argument. Prints one JSON object.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

const sent, partitions = 300, 2

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

type reader struct {
	keys map[string]bool
	done context.CancelFunc
}

func (*reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			if len(message.Headers) != 1 || string(message.Headers[0].Value) != string(message.Key) {
				log.Fatalf("headers of %s", message.Key)
			}
			session.MarkMessage(message, "")
			lock <- true
			r.keys[string(message.Key)] = true
			if len(r.keys) == sent {
				r.done()
			}
			<-lock
		case <-session.Context().Done():
			return nil
		}
	}
}

var lock = make(chan bool, 1)

func main() {
	seeds, topic := strings.Split(os.Args[1], ","), os.Args[2]
	config := sarama.NewConfig()
	if len(os.Args) > 3 {
		version, err := sarama.ParseKafkaVersion(os.Args[3])
		must(err)
		config.Version = version
	} else {
		config.Version = sarama.MaxVersion
	}
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Compression = sarama.CompressionGZIP
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest

	admin, err := sarama.NewClusterAdmin(seeds, config)
	must(err)
	must(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false))
	producer, err := sarama.NewSyncProducer(seeds, config)
	must(err)
	messages := make([]*sarama.ProducerMessage, sent)
	for i := range messages {
		text := fmt.Sprint(i)
		messages[i] = &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(text), Value: sarama.StringEncoder(text),
			Headers: []sarama.RecordHeader{{Key: []byte("number"), Value: []byte(text)}},
		}
	}
	must(producer.SendMessages(messages))
	must(producer.Close())

	group, err := sarama.NewConsumerGroup(seeds, topic, config)
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	read := &reader{keys: map[string]bool{}, done: cancel}
	for ctx.Err() == nil {
		must(group.Consume(ctx, []string{topic}, read))
	}
	must(group.Close())

	client, err := sarama.NewClient(seeds, config)
	must(err)
	topics, err := client.Topics()
	must(err)
	listed := false
	for _, name := range topics {
		listed = listed || name == topic
	}
	offsets, err := sarama.NewOffsetManagerFromClient(topic, client)
	must(err)
	committed := int64(0)
	for index := int32(0); index < partitions; index++ {
		manager, err := offsets.ManagePartition(topic, index)
		must(err)
		offset, _ := manager.NextOffset()
		committed += offset
		must(manager.Close())
	}
	must(admin.DeleteTopic(topic))
	told := map[string]interface{}{"sent": sent, "read": len(read.keys), "committed": committed, "listed": listed}
	must(json.NewEncoder(os.Stdout).Encode(told))
}
