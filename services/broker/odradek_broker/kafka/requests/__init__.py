"""One module for each Kafka request, grouped by what the request is about."""
