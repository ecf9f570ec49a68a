// rdkafka: administration, a producer, a group and its offsets. Prints one JSON object.
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::collections::HashSet;
use std::time::{Duration, Instant};

const SENT: usize = 300;
const PARTITIONS: i32 = 2;
const TIMEOUT: Duration = Duration::from_secs(30);

fn settings(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config
}

fn wait<F: std::future::Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (bootstrap, topic) = (arguments[1].as_str(), arguments[2].as_str());
    let admin: AdminClient<DefaultClientContext> = settings(bootstrap).create().unwrap();
    let options = AdminOptions::new().operation_timeout(Some(TIMEOUT));
    let wanted = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
    wait(admin.create_topics(&[wanted], &options)).unwrap()[0].as_ref().unwrap();

    let producer: BaseProducer =
        settings(bootstrap).set("enable.idempotence", "true").create().unwrap();
    for number in 0..SENT {
        let text = number.to_string();
        let headers = OwnedHeaders::new().insert(Header { key: "number", value: Some(&text) });
        producer.send(BaseRecord::to(topic).key(&text).payload(&text).headers(headers)).unwrap();
    }
    producer.flush(TIMEOUT).unwrap();

    let group = |bootstrap: &str| {
        let mut config = settings(bootstrap);
        config.set("group.id", topic).set("auto.offset.reset", "earliest");
        config.set("enable.auto.commit", "false");
        config
    };
    let consumer: BaseConsumer = group(bootstrap).create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let mut read = HashSet::new();
    let deadline = Instant::now() + TIMEOUT;
    while read.len() < SENT {
        assert!(Instant::now() < deadline, "{} of {SENT} records were read in time", read.len());
        // A call returns without a record when it handled another event, such as an assignment.
        let Some(polled) = consumer.poll(Duration::from_millis(500)) else { continue };
        let record = polled.unwrap();
        assert_eq!(record.headers().unwrap().get(0).value, record.key());
        read.insert(record.payload().unwrap().to_vec());
    }
    consumer.commit_consumer_state(CommitMode::Sync).unwrap();
    drop(consumer);

    let again: BaseConsumer = group(bootstrap).create().unwrap();
    let metadata = again.fetch_metadata(None, TIMEOUT).unwrap();
    let listed = metadata.topics().iter().any(|topic_metadata| topic_metadata.name() == topic);
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_range(topic, 0, PARTITIONS - 1);
    let offsets = again.committed_offsets(partitions, TIMEOUT).unwrap();
    let committed: i64 = offsets
        .elements()
        .iter()
        .map(|element| match element.offset() {
            Offset::Offset(offset) => offset,
            _ => 0,
        })
        .sum();
    wait(admin.delete_topics(&[topic], &options)).unwrap()[0].as_ref().unwrap();
    println!(
        "{{\"sent\": {SENT}, \"read\": {}, \"committed\": {committed}, \"listed\": {listed}}}",
        read.len()
    );
}
