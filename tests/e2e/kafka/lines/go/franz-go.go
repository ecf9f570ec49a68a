// franz-go: administration, a producer, a group and its offsets. Prints one JSON object.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const sent, partitions = 300, 2

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	seeds, topic := kgo.SeedBrokers(strings.Split(os.Args[1], ",")...), os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	client, err := kgo.NewClient(seeds, kgo.ProducerBatchCompression(kgo.GzipCompression()))
	must(err)
	create := kmsg.NewPtrCreateTopicsRequest()
	wanted := kmsg.NewCreateTopicsRequestTopic()
	wanted.Topic, wanted.NumPartitions, wanted.ReplicationFactor = topic, partitions, 1
	create.Topics = append(create.Topics, wanted)
	created, err := create.RequestWith(ctx, client)
	must(err)
	must(kerr.ErrorForCode(created.Topics[0].ErrorCode))
	records := make([]*kgo.Record, sent)
	for i := range records {
		text := []byte(fmt.Sprint(i))
		headers := []kgo.RecordHeader{{Key: "number", Value: text}}
		records[i] = &kgo.Record{Topic: topic, Key: text, Value: text, Headers: headers}
	}
	must(client.ProduceSync(ctx, records...).FirstErr())

	member, err := kgo.NewClient(
		seeds, kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	must(err)
	read := map[string]bool{}
	for len(read) < sent {
		fetches := member.PollFetches(ctx)
		must(ctx.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			if len(record.Headers) != 1 || string(record.Headers[0].Value) != string(record.Key) {
				log.Fatalf("headers of %s", record.Key)
			}
			read[string(record.Key)] = true
		})
	}
	must(member.CommitUncommittedOffsets(ctx))
	member.Close()

	metadata, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client)
	must(err)
	listed := false
	for _, one := range metadata.Topics {
		listed = listed || (one.Topic != nil && *one.Topic == topic)
	}
	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.Group = topic
	offsets := kmsg.NewOffsetFetchRequestTopic()
	offsets.Topic, offsets.Partitions = topic, []int32{0, 1}
	fetch.Topics = append(fetch.Topics, offsets)
	found, err := fetch.RequestWith(ctx, client)
	must(err)
	committed := int64(0)
	for _, one := range found.Topics {
		for _, partition := range one.Partitions {
			committed += partition.Offset
		}
	}
	remove := kmsg.NewPtrDeleteTopicsRequest()
	remove.TopicNames = []string{topic}
	gone := kmsg.NewDeleteTopicsRequestTopic()
	gone.Topic = &topic
	remove.Topics = append(remove.Topics, gone)
	_, err = remove.RequestWith(ctx, client)
	must(err)
	client.Close()
	told := map[string]interface{}{"sent": sent, "read": len(read), "committed": committed, "listed": listed}
	must(json.NewEncoder(os.Stdout).Encode(told))
}
