"""Confluent's REST API v2: topics, produce requests and consumer instances. Media types choose the record format.

topics            routes of topics, partitions, offsets and brokers, and of producing records
consumers         routes that create, subscribe, assign and delete consumer instances
consumer_records  the route by which an instance reads records
consumer_offsets  routes by which an instance commits offsets and seeks
instance          one instance: its options, its SDK consumer, its format
instances         the instances that this gateway serves; requests for other instances are passed on or taken over
instance_registry which gateway serves which instance; a compacted topic that all gateways read
shapes            the types of responses, for openapi.json
"""
