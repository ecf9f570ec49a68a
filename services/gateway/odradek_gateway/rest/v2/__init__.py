"""REST v2: topics, produce requests and consumer instances in Confluent's form; media types choose the formats.

topics            topics, partitions, offsets, brokers, and records into a topic or a partition
consumers         instances: created, subscribed, assigned, deleted; how a request reaches their gateway
instance          one instance: its options, its SDK consumer, its format
instances         the instances served here, requests passed on, and instances taken over
instance_registry which gateway serves which instance: a compacted topic that all gateways read
consumer_records  the records that an instance reads
consumer_offsets  the offsets that an instance commits and seeks to
"""
