"""The sparse indexes beside each segment, in Kafka's formats."""
