"""Kafka requests that authenticate a client, or manage ACLs and SCRAM credentials."""
