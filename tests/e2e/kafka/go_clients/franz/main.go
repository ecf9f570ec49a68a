// franz-go: each codec, headers, a group with two members for each way of assignment, administration.
// Prints one JSON object.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const perCodec = 2000

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func produce(ctx context.Context, seeds []string, topic string) int {
	codecs := []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	}
	for _, codec := range codecs {
		client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.ProducerBatchCompression(codec))
		must(err)
		for i := 0; i < perCodec; i++ {
			record := &kgo.Record{
				Topic: topic, Key: []byte(fmt.Sprint(i)), Value: []byte(strings.Repeat("v", i%100)),
				Headers: []kgo.RecordHeader{{Key: "number", Value: []byte(fmt.Sprint(i))}},
			}
			client.Produce(ctx, record, func(_ *kgo.Record, err error) { must(err) })
		}
		must(client.Flush(ctx))
		client.Close()
	}
	return perCodec * len(codecs)
}

// consume reads all records with two members and commits; it returns how many were read, and how many not committed.
func consume(ctx context.Context, seeds []string, topic, group string, sent int, more kgo.Opt) (int, int64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var lock sync.Mutex
	var members sync.WaitGroup
	read, isComplete := 0, false
	for range 2 {
		members.Go(func() {
			client, err := kgo.NewClient(
				kgo.SeedBrokers(seeds...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
				kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), more,
			)
			must(err)
			defer client.Close()
			for done := false; !done; {
				wait, stop := context.WithTimeout(ctx, 200*time.Millisecond)
				fetches := client.PollFetches(wait)
				stop()
				fetches.EachRecord(func(record *kgo.Record) {
					if string(record.Headers[0].Value) != string(record.Key) {
						log.Fatalf("header %s of key %s", record.Headers[0].Value, record.Key)
					}
				})
				lock.Lock()
				read += fetches.NumRecords()
				isComplete = isComplete || read >= sent
				done = isComplete
				lock.Unlock()
				must(ctx.Err())
			}
			must(client.CommitUncommittedOffsets(ctx))
		})
	}
	members.Wait()
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	must(err)
	defer client.Close()
	lags, err := kadm.NewClient(client).Lag(ctx, group)
	must(err)
	return read, lags[group].Lag.Total()
}

func main() {
	seeds, topic := strings.Split(os.Args[1], ","), os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	must(err)
	admin := kadm.NewClient(client)
	_, err = admin.CreateTopic(ctx, 4, 1, map[string]*string{"retention.ms": kadm.StringPtr("3600000")}, topic)
	must(err)
	sent := produce(ctx, seeds, topic)
	told := map[string]any{"sent": sent}
	ways := map[string]kgo.Opt{
		"cooperative":    kgo.Balancers(kgo.CooperativeStickyBalancer()),
		"range":          kgo.Balancers(kgo.RangeBalancer()),
		"read committed": kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	}
	for name, more := range ways {
		read, lag := consume(ctx, seeds, topic, topic+"-"+strings.Fields(name)[0], sent, more)
		told[name] = map[string]any{"read": read, "lag": lag}
	}
	_, err = admin.UpdatePartitions(ctx, 6, topic)
	must(err)
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	must(err)
	for _, config := range configs[0].Configs {
		if config.Key == "retention.ms" {
			told["retention.ms"] = config.MaybeValue()
		}
	}
	deleted, err := admin.DeleteRecords(ctx, kadm.Offsets{topic: {0: {Topic: topic, Partition: 0, At: 10, LeaderEpoch: -1}}})
	must(err)
	must(deleted.Error())
	starts, err := admin.ListStartOffsets(ctx, topic)
	must(err)
	first, _ := starts.Lookup(topic, 0)
	told["start"] = first.Offset
	_, err = admin.DeleteTopics(ctx, topic)
	must(err)
	must(json.NewEncoder(os.Stdout).Encode(told))
}
