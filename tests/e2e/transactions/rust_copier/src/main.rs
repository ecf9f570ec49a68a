// rdkafka: copies a topic to another one in transactions of a group, exactly once, until it is killed.
// Every tenth batch is aborted on purpose, and copied again. Where the producer has a fatal error, or a call never
// returns (issue 5511 of librdkafka), the process ends with status 3, and its successor continues at the committed offsets.
use std::collections::BTreeMap;
use std::env;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::Message;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

const BATCH: usize = 50;
const ABORTS_EVERY: u64 = 10;
const CALL: Duration = Duration::from_secs(30);
const HANGS: Duration = Duration::from_secs(90);
const GAVE_UP: i32 = 3;

static CALLS: AtomicU64 = AtomicU64::new(0);

// Ends the process when it made no call for `HANGS`.
fn watch() {
    let mut seen = 0;
    loop {
        thread::sleep(HANGS);
        let made = CALLS.load(Ordering::Relaxed);
        if made == seen {
            eprintln!("hung: no call returned for {HANGS:?}");
            process::exit(GAVE_UP);
        }
        seen = made;
    }
}

fn give_up(what: &str, error: KafkaError) -> ! {
    eprintln!("gave up: {what}: {error}");
    process::exit(GAVE_UP);
}

// Repeats a call for as long as its error is retriable.
fn call(mut attempt: impl FnMut() -> KafkaResult<()>) -> KafkaResult<()> {
    loop {
        let result = attempt();
        CALLS.fetch_add(1, Ordering::Relaxed);
        match result {
            Err(KafkaError::Transaction(error)) if error.is_retriable() => continue,
            result => return result,
        }
    }
}

// Its thread serves delivery reports, for which `abort_transaction` waits.
type CopyProducer = ThreadedProducer<DefaultProducerContext>;

// The values of a batch by partition and offset. A rebalance within the batch goes back to the committed offsets, so
// that the same record may be polled twice.
type Batch = BTreeMap<(i32, i64), Vec<u8>>;

fn poll(consumer: &BaseConsumer) -> Batch {
    let mut batch = Batch::new();
    while batch.len() < BATCH {
        let polled = consumer.poll(Duration::from_millis(100));
        CALLS.fetch_add(1, Ordering::Relaxed);
        match polled {
            Some(Ok(message)) => {
                let place = (message.partition(), message.offset());
                batch.insert(place, message.payload().unwrap_or_default().to_vec());
            }
            Some(Err(error)) => eprintln!("poll: {error}"),
            None => break,
        }
    }
    batch
}

fn copy(consumer: &BaseConsumer, producer: &CopyProducer, source: &str, sink: &str, batch: &Batch) -> KafkaResult<()> {
    let mut positions = TopicPartitionList::new();
    for (&(partition, offset), value) in batch {
        while producer
            .send(BaseRecord::<(), Vec<u8>>::to(sink).payload(value))
            .is_err()
        {
            producer.poll(Duration::from_millis(10));
        }
        let next = Offset::Offset(offset + 1);
        match positions.find_partition(source, partition) {
            Some(mut position) => position.set_offset(next)?,
            None => positions.add_partition_offset(source, partition, next)?,
        }
    }
    let group = consumer.group_metadata().expect("the consumer is in a group");
    call(|| producer.send_offsets_to_transaction(&positions, &group, CALL))
}

// Sets the positions to the group's committed offsets, because the transaction was aborted.
fn rewind(consumer: &BaseConsumer) {
    loop {
        let Ok(mut places) = consumer.committed(CALL) else {
            continue;
        };
        let (names, offsets): (Vec<_>, Vec<_>) = places
            .elements()
            .iter()
            .map(|place| ((place.topic().to_owned(), place.partition()), place.offset()))
            .unzip();
        for ((topic, partition), offset) in names.iter().zip(offsets) {
            if offset == Offset::Invalid {
                places
                    .set_partition_offset(topic, *partition, Offset::Beginning)
                    .expect("it is listed");
            }
        }
        match consumer.seek_partitions(places, CALL) {
            Ok(_) => return,
            Err(error) => eprintln!("seek: {error}"),
        }
    }
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let [_, seeds, source, sink, name] = &arguments[..] else {
        panic!("SEEDS SOURCE SINK NAME")
    };
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", seeds)
        .set("group.id", name)
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        // A copier that was killed must leave the group before its successor gets the partitions.
        .set("session.timeout.ms", "2000")
        .set("heartbeat.interval.ms", "300")
        .create()
        .expect("a consumer");
    let producer: CopyProducer = ClientConfig::new()
        .set("bootstrap.servers", seeds)
        .set("transactional.id", name)
        .set("transaction.timeout.ms", "10000")
        .create()
        .expect("a producer");
    thread::spawn(watch);
    if let Err(error) = call(|| producer.init_transactions(CALL)) {
        give_up("init_transactions", error);
    }
    consumer.subscribe(&[source]).expect("subscribe");
    for number in 1.. {
        let batch = poll(&consumer);
        if batch.is_empty() {
            continue;
        }
        producer.begin_transaction().expect("begin_transaction");
        let copied = copy(&consumer, &producer, source, sink, &batch);
        let ended = match copied {
            Ok(()) if number % ABORTS_EVERY != 0 => call(|| producer.commit_transaction(CALL)),
            failed => Err(failed.err().unwrap_or(KafkaError::Canceled)),
        };
        if let Err(error) = ended {
            eprintln!("batch {number}: {error}");
            if let Err(error) = call(|| producer.abort_transaction(CALL)) {
                give_up("abort_transaction", error);
            }
            rewind(&consumer);
        }
    }
}
