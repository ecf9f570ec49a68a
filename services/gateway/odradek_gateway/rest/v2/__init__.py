"""REST v2: Confluent's shapes of topics, produce and consumer instances; media types are the contract.

topics            topics, partitions, offsets, brokers
produce           records into a topic or a partition
consumers         instances: made, subscribed, assigned, deleted
consumer_records  what an instance reads
consumer_offsets  what it committed, and where it goes on
at_owner          how a request comes to the gateway that serves the instance
"""
