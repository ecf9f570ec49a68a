// franz-go: copies a topic to another one in transactions of a group, exactly once, until it is killed.
// Every tenth batch is aborted on purpose, and copied again.
package main

import (
	"context"
	"log"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const batch, abortsEvery = 50, 10

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	seeds, source, sink, name := strings.Split(os.Args[1], ","), os.Args[2], os.Args[3], os.Args[4]
	ctx := context.Background()
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(seeds...), kgo.TransactionalID(name), kgo.ConsumerGroup(name), kgo.ConsumeTopics(source),
		kgo.DefaultProduceTopic(sink), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// A copier that was killed must leave the group before its successor gets the partitions.
		kgo.SessionTimeout(2*time.Second), kgo.HeartbeatInterval(300*time.Millisecond), kgo.RebalanceTimeout(5*time.Second),
	)
	must(err)
	for number := 1; ; number++ {
		fetches := session.PollRecords(ctx, batch)
		fetches.EachError(func(topic string, partition int32, err error) {
			log.Printf("%s/%d: %v", topic, partition, err)
		})
		if fetches.NumRecords() == 0 {
			continue
		}
		must(session.Begin())
		produced := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Key: record.Key, Value: record.Value}, produced.Promise())
		})
		wants := kgo.TransactionEndTry(produced.Err() == nil && number%abortsEvery != 0)
		if _, err := session.End(ctx, wants); err != nil {
			log.Fatalf("ending batch %d: %v", number, err)
		}
	}
}
